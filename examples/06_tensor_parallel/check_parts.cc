// Compares the split MLP, attention and vocabulary with the whole.
#include "attention.h"
#include "checks.h"
#include "mlp.h"
#include "printed.h"
#include "say.h"
#include "vocabulary.h"

namespace parallel {

using rondo::Status;

namespace {
constexpr size_t kRows = 8, kWidth = 24, kInner = 96, kHeads = 4;  // n, d, f
}

Status check_mlp(Group& group) {
  const Matrix a = made_up(kWidth, kInner, 1, 0.5f), b = made_up(kInner, kWidth, 2, 0.3f);
  const Matrix x = made_up(kRows, kWidth, 3), dy = made_up(kRows, kWidth, 4);
  Mlp whole = Mlp::part(a, b, {0, kInner}), mine = Mlp::part(a, b, group.part(kInner));
  const Matrix y = whole.forward(x), dx = whole.backward(dy);

  Matrix sum_y = mine.forward(x);
  RONDO_TRY(group.all_reduce(sum_y));
  Matrix sum_dx = mine.backward(dy);
  RONDO_TRY(group.all_reduce(sum_dx));
  RONDO_TRY(expect_same(group, sum_y, y, "the MLP's output"));
  RONDO_TRY(expect_same(group, sum_dx, dx, "the MLP's dx"));
  RONDO_TRY(expect_same(group, mine.da, columns(whole.da, group.part(kInner)), "the MLP's dA"));
  RONDO_TRY(expect_same(group, mine.db, rows(whole.db, group.part(kInner)), "the MLP's dB"));

  RONDO_TRY_ASSIGN(const Matrix wrong, gelu_of_terms(group, x, a));
  const double off = difference(wrong, gelu(product(x, a)));
  RONDO_TRY(expect(group, group.size() == 1 || off > 0.05, "gelu of terms is not gelu of their sum"));
  say(group, "MLP, A by columns, B by rows: differs by %.1e forward, %.1e backward; one all-reduce each\n",
      difference(sum_y, y), difference(sum_dx, dx));
  say(group, "MLP, A by rows instead: gelu(x A) differs by %.2f of its largest element: gelu is not linear\n", off);
  return {};
}

Status check_attention(Group& group) {
  const Matrix w[4] = {made_up(kWidth, kWidth, 11), made_up(kWidth, kWidth, 12), made_up(kWidth, kWidth, 13),
                       made_up(kWidth, kWidth, 14)};
  const Matrix x = made_up(kRows, kWidth, 15), dy = made_up(kRows, kWidth, 16);
  constexpr size_t kSize = kWidth / kHeads;
  const Range heads = group.part(kHeads), own = {heads.first * kSize, heads.size * kSize};
  Attention whole = Attention::part(w, kSize, {0, kHeads}), mine = Attention::part(w, kSize, heads);
  const Matrix y = whole.forward(x), dx = whole.backward(dy);

  Matrix sum_y = mine.forward(x);
  RONDO_TRY(group.all_reduce(sum_y));
  Matrix sum_dx = mine.backward(dy);
  RONDO_TRY(group.all_reduce(sum_dx));
  RONDO_TRY(expect_same(group, sum_y, y, "attention's output"));
  RONDO_TRY(expect_same(group, sum_dx, dx, "attention's dx"));
  RONDO_TRY(expect_same(group, mine.dwq, columns(whole.dwq, own), "attention's dWq"));
  RONDO_TRY(expect_same(group, mine.dwk, columns(whole.dwk, own), "attention's dWk"));
  RONDO_TRY(expect_same(group, mine.dwv, columns(whole.dwv, own), "attention's dWv"));
  RONDO_TRY(expect_same(group, mine.dwo, rows(whole.dwo, own), "attention's dWo"));
  say(group, "attention, %zu heads among %d ranks: differs by %.1e forward, %.1e backward; one all-reduce each\n",
      kHeads, group.size(), difference(sum_y, y), difference(sum_dx, dx));
  return {};
}

namespace {

// Four words of 50000, from both halves. A rank without a word has zeros, and x + 0 is exact.
Status check_lookup(Group& group) {
  constexpr size_t kWords = 50000, kDim = 4;
  const std::vector<size_t> ids = {0, 1, 25000, 25001};
  const Matrix table = made_up(kWords, kDim, 21), dy = made_up(ids.size(), kDim, 22);
  const Range words = group.part(kWords);
  const Matrix mine = lookup_part(rows(table, words), words.first, ids);
  say(group, "embedding of words 0, 1, 25000, 25001 of 50000:\n");
  RONDO_TRY(say_parts(group, mine, "rank"));
  Matrix all = mine;
  RONDO_TRY(group.all_reduce(all));
  RONDO_TRY(expect(group, all.v == lookup_part(table, 0, ids).v, "the parts' sum is exactly the lookup"));
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool here = ids[i] >= words.first && ids[i] < words.first + words.size;
    const bool zeros = std::all_of(&mine.v[i * kDim], &mine.v[i * kDim] + kDim, [](float e) { return e == 0; });
    RONDO_TRY(expect(group, zeros != here, "rows of other ranks' words are zero, and only those"));
  }
  const std::vector<size_t> twice = {0, 25000, 0, 25001};
  RONDO_TRY(expect(group, lookup_backward(dy, words, twice).v == rows(lookup_backward(dy, {0, kWords}, twice), words).v,
                   "the table's gradient is a part of the whole one"));
  say(group, "  their sum is the lookup in the whole table, exactly\n");
  return {};
}

}  // namespace

Status check_vocabulary(Group& group) {
  RONDO_TRY(check_lookup(group));
  constexpr size_t kWords = 101;  // a prime: parts differ
  const Matrix x = made_up(kRows, kWidth, 23), w = made_up(kWords, kWidth, 24, 2);
  const std::vector<size_t> targets = {0, 100, 50, 51, 7, 33, 67, 99};
  Group alone;
  RONDO_TRY_ASSIGN(const Head whole, cross_entropy(alone, x, w, {0, kWords}, targets));
  const Range words = group.part(kWords);
  group.clear_counts();
  RONDO_TRY_ASSIGN(const Head mine, cross_entropy(group, x, rows(w, words), words, targets));
  const uint64_t bytes = group.counts().ring_bytes;
  RONDO_TRY(expect(group, std::fabs(mine.loss - whole.loss) <= kTolerance * whole.loss, "the loss as on one process"));
  RONDO_TRY(expect_same(group, mine.dx, whole.dx, "the head's dx"));
  RONDO_TRY(expect_same(group, mine.dw, rows(whole.dw, words), "the head's dW"));
  say(group, "head, %zu words: loss %.6f, on one process %.6f; dx differs by %.1e\n", kWords, mine.loss, whole.loss,
      difference(mine.dx, whole.dx));
  const auto others = static_cast<uint64_t>(group.size() - 1), ranks = static_cast<uint64_t>(group.size());
  say(group, "  a rank sends %llu B for softmax and loss (3 all-reduces of %zu floats); of gathered logits %llu B\n",
      static_cast<unsigned long long>(bytes - 2 * mine.dx.bytes() * others / ranks), kRows,
      static_cast<unsigned long long>(kRows * kWords * sizeof(float) * others / ranks));
  return {};
}

Status check_printed_softmax(Group& group) {
  Matrix logits(5, 8);
  std::copy_n(&kLogits[0][0], logits.v.size(), logits.v.begin());
  const Range words = group.part(8);
  RONDO_TRY_ASSIGN(const Softmax mine, softmax(group, columns(logits, words)));
  Group alone;
  RONDO_TRY_ASSIGN(const Softmax whole, softmax(alone, logits));
  RONDO_TRY(expect_same(group, mine.p, columns(whole.p, words), "the softmax of 5 x 8"));
  say(group, "softmax of 5 x 8, the printed example; row sums of exp:");
  for (size_t i = 0; i < 5; ++i) {
    const float row_sum = mine.sum(i, 0) * std::exp(mine.most(i, 0));
    say(group, " %.4f", static_cast<double>(row_sum));
    RONDO_TRY(expect(group, std::fabs(row_sum - kSums[i]) < 6e-5f, "the printed row sum"));
    for (size_t j = 0; j < words.size; ++j)
      RONDO_TRY(expect(group, std::fabs(mine.p(i, j) - kProbabilities[i][words.first + j]) < 6e-5f,
                       "the printed probability"));
  }
  say(group, "\n");
  if (8 % group.size() == 0) RONDO_TRY(say_parts(group, mine.p, "rank"));
  return {};
}

}  // namespace parallel
