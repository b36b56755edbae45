// One layer, tensor parallel and sequence parallel, against one process and against each other.
#include <rondo/trace.h>

#include <memory>

#include "checks.h"
#include "layer.h"
#include "say.h"

namespace parallel {
namespace {

using rondo::Status;

constexpr size_t kWidth = 32, kInner = 128, kHeads = 4;

struct Ran {
  Counts counts;  // forward and backward
  uint64_t activation_bytes = 0, row_bytes = 0;
};

// The whole layer, computed by every rank alone.
struct Whole {
  LayerWeights weights = LayerWeights::made(kWidth, kInner, kHeads);
  Matrix x, dy, y, dx;
  Group alone;
  Layer layer{alone, weights, Layer::Split::kTensor};

  Status compute(size_t num_rows) {
    x = made_up(num_rows, kWidth, 31), dy = made_up(num_rows, kWidth, 32);
    RONDO_TRY_ASSIGN(y, layer.forward(x));
    RONDO_TRY_ASSIGN(dx, layer.backward(dy));
    return {};
  }
};

Status compare_gradients(Group& group, const Whole& whole, const Layer& layer) {
  constexpr size_t kSize = kWidth / kHeads;
  const Range heads = group.part(kHeads), own = {heads.first * kSize, heads.size * kSize}, inner = group.part(kInner);
  const Layer& l = whole.layer;
  RONDO_TRY(expect_same(group, layer.attention.dwq, columns(l.attention.dwq, own), "the layer's dWq"));
  RONDO_TRY(expect_same(group, layer.attention.dwk, columns(l.attention.dwk, own), "the layer's dWk"));
  RONDO_TRY(expect_same(group, layer.attention.dwv, columns(l.attention.dwv, own), "the layer's dWv"));
  RONDO_TRY(expect_same(group, layer.attention.dwo, rows(l.attention.dwo, own), "the layer's dWo"));
  RONDO_TRY(expect_same(group, layer.mlp.da, columns(l.mlp.da, inner), "the layer's dA"));
  RONDO_TRY(expect_same(group, layer.mlp.db, rows(l.mlp.db, inner), "the layer's dB"));
  RONDO_TRY(expect_same(group, layer.norm1.dgain, l.norm1.dgain, "norm 1's dgain"));
  RONDO_TRY(expect_same(group, layer.norm1.dbias, l.norm1.dbias, "norm 1's dbias"));
  RONDO_TRY(expect_same(group, layer.norm2.dgain, l.norm2.dgain, "norm 2's dgain"));
  return expect_same(group, layer.norm2.dbias, l.norm2.dbias, "norm 2's dbias");
}

Status run(Group& group, const Whole& whole, Layer::Split split, const std::string& trace, Ran* ran) {
  const bool sequence = split == Layer::Split::kSequence;
  const Range mine = sequence ? group.part(whole.x.rows) : Range{0, whole.x.rows};
  Layer layer(group, whole.weights, split);
  if (!trace.empty()) RONDO_TRY(rondo::trace_start(*group.comm(), {trace}));
  RONDO_TRY_ASSIGN(const Matrix y, layer.forward(rows(whole.x, mine)));
  RONDO_TRY_ASSIGN(const Matrix dx, layer.backward(rows(whole.dy, mine)));
  if (!trace.empty()) RONDO_TRY(rondo::trace_stop(*group.comm()));
  *ran = {group.counts(), layer.activation_bytes(), layer.row_bytes()};
  RONDO_TRY(layer.sum_norm_gradients());
  RONDO_TRY(expect_same(group, y, rows(whole.y, mine), "the layer's output"));
  RONDO_TRY(expect_same(group, dx, rows(whole.dx, mine), "the layer's dx"));
  return compare_gradients(group, whole, layer);
}

void say_run(const Group& group, const char* name, const Ran& r) {
  say(group,
      "  %-9s %d all-reduces, %d all-gathers, %d reduce-scatters: %llu B from each rank; kept %llu B, of these %llu "
      "B by norms and dropout\n",
      name, r.counts.all_reduces, r.counts.all_gathers, r.counts.reduce_scatters,
      static_cast<unsigned long long>(r.counts.ring_bytes), static_cast<unsigned long long>(r.activation_bytes),
      static_cast<unsigned long long>(r.row_bytes));
}

}  // namespace

Status check_layer(Group& group, const std::string& trace) {
  Whole whole;
  RONDO_TRY(whole.compute(8 * static_cast<size_t>(group.size())));
  RONDO_TRY_ASSIGN(const auto first, group.comm()->split(0, group.rank()));
  RONDO_TRY_ASSIGN(const auto second, group.comm()->split(0, group.rank()));
  Group tensor_group(*first), sequence_group(*second);
  Ran tensor, sequence;
  RONDO_TRY(run(tensor_group, whole, Layer::Split::kTensor, trace, &tensor));
  RONDO_TRY(run(sequence_group, whole, Layer::Split::kSequence, trace, &sequence));

  say(group, "a layer of %zu x %zu, forward and backward, as on one process in both ways:\n", whole.x.rows, kWidth);
  say_run(group, "tensor", tensor);
  say_run(group, "sequence", sequence);
  const Counts &t = tensor.counts, &s = sequence.counts;
  RONDO_TRY(expect(group, t.all_reduces == 4 && t.all_gathers + t.reduce_scatters == 0, "4 all-reduces"));
  RONDO_TRY(expect(group, s.all_reduces == 0 && s.all_gathers == 4 && s.reduce_scatters == 4, "4 of each half"));
  RONDO_TRY(expect(group, t.ring_bytes == s.ring_bytes, "both send the same bytes"));
  return expect(group, sequence.row_bytes * static_cast<uint64_t>(group.size()) == tensor.row_bytes,
                "norms and dropout keep 1 / N");
}

}  // namespace parallel
