// The two ends of a language model, split over the vocabulary: each rank has the rows of some words.
//
// Embedding: a word of another rank gives a row of zeros, and the sum over ranks is the lookup. Head: each rank has the
// logits of its words, n x v / N. They are never gathered. From the other ranks a softmax needs only the largest logit
// and the sum of exp of each row, and the loss needs the target's logit.
//
// Thread safety: values.
#pragma once

#include "group.h"

namespace parallel {

/// Rows of the table's part for `ids`, zeros for another rank's words. table: v / N x d. Returns ids x d.
inline Matrix lookup_part(const Matrix& table, size_t first_word, const std::vector<size_t>& ids) {
  Matrix found(ids.size(), table.cols);
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] >= first_word && ids[i] - first_word < table.rows)
      std::copy_n(&table.v[(ids[i] - first_word) * table.cols], table.cols, &found(i, 0));
  return found;
}

/// Its backward: adds dy (ids x d) to the rows of this rank's words.
inline Matrix lookup_backward(const Matrix& dy, Range words, const std::vector<size_t>& ids) {
  Matrix dtable(words.size, dy.cols);
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] >= words.first && ids[i] - words.first < words.size)
      for (size_t j = 0; j < dy.cols; ++j) dtable(ids[i] - words.first, j) += dy(i, j);
  return dtable;
}

struct Softmax {
  Matrix p;          // n x v / N: this rank's words
  Matrix most, sum;  // n x 1: the largest logit of a row; the sum of exp(logit - most), both over all ranks
};

/// logits: n x v / N. Two all-reduces of n floats: maximum, then sum.
inline rondo::Expected<Softmax> softmax(Group& group, const Matrix& logits) {
  Softmax s{logits, Matrix(logits.rows, 1), Matrix(logits.rows, 1)};
  for (size_t i = 0; i < logits.rows; ++i) {
    s.most(i, 0) = -INFINITY;
    for (size_t j = 0; j < logits.cols; ++j) s.most(i, 0) = std::max(s.most(i, 0), logits(i, j));
  }
  RONDO_TRY(group.all_reduce(s.most, rondo::Op::kMax));
  for (size_t i = 0; i < logits.rows; ++i)
    for (size_t j = 0; j < logits.cols; ++j) s.sum(i, 0) += s.p(i, j) = std::exp(logits(i, j) - s.most(i, 0));
  RONDO_TRY(group.all_reduce(s.sum));
  for (size_t i = 0; i < logits.rows; ++i)
    for (size_t j = 0; j < logits.cols; ++j) s.p(i, j) /= s.sum(i, 0);
  return s;
}

struct Head {
  double loss = 0;  // mean of -log p[target]
  Matrix dx;        // n x d, whole
  Matrix dw;        // v / N x d
};

/// logits = x w^T. x: n x d, whole; w: v / N x d, the rows of `words`; targets: n words. Besides the softmax's two
/// all-reduces: one of n floats (the targets' logits), and one of n x d in backward.
inline rondo::Expected<Head> cross_entropy(Group& group, const Matrix& x, const Matrix& w, Range words,
                                           const std::vector<size_t>& targets) {
  const Matrix logits = product(x, transposed(w));
  RONDO_TRY_ASSIGN(Softmax s, softmax(group, logits));
  Matrix wanted(x.rows, 1), dlogits = s.p;
  const float each = 1 / static_cast<float>(x.rows);
  for (float& e : dlogits.v) e *= each;
  for (size_t i = 0; i < x.rows; ++i)
    if (targets[i] >= words.first && targets[i] - words.first < words.size) {
      wanted(i, 0) = logits(i, targets[i] - words.first);
      dlogits(i, targets[i] - words.first) -= each;
    }
  RONDO_TRY(group.all_reduce(wanted));
  Head head{0, product(dlogits, w), product(transposed(dlogits), x)};
  for (size_t i = 0; i < x.rows; ++i)
    head.loss += static_cast<double>((std::log(s.sum(i, 0)) + s.most(i, 0) - wanted(i, 0)) * each);
  RONDO_TRY(group.all_reduce(head.dx));
  return head;
}

}  // namespace parallel
