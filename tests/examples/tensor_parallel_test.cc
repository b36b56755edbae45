// The mathematics of examples/06_tensor_parallel on one rank, by finite differences. The example itself compares parts
// with the whole, and both would share a wrong derivative.
#include <gtest/gtest.h>

#include <cmath>

#include "06_tensor_parallel/layer.h"
#include "06_tensor_parallel/vocabulary.h"

namespace parallel {
namespace {

constexpr float kStep = 1e-2f;

// Checks that d loss() / d m, element by element, equals `gradient`.
template <class Loss>
void expect_slopes(Matrix& m, const Matrix& gradient, const char* name, const Loss& loss) {
  ASSERT_EQ(m.v.size(), gradient.v.size()) << name;
  for (size_t i = 0; i < m.v.size(); ++i) {
    const float before = m.v[i];
    m.v[i] = before + kStep;
    const double above = loss();
    m.v[i] = before - kStep;
    const double below = loss();
    m.v[i] = before;
    const double slope = (above - below) / (2 * static_cast<double>(kStep));
    ASSERT_NEAR(gradient.v[i], slope, 2e-3 + 0.01 * std::fabs(slope)) << name << "[" << i << "]";
  }
}

double dot(const Matrix& a, const Matrix& b) {
  double sum = 0;
  for (size_t i = 0; i < a.v.size(); ++i) sum += static_cast<double>(a.v[i]) * static_cast<double>(b.v[i]);
  return sum;
}

TEST(TensorParallelLayer, GradientsAreThoseOfFiniteDifferences) {
  constexpr size_t kRows = 5, kWidth = 6, kInner = 10, kHeads = 2;
  LayerWeights w = LayerWeights::made(kWidth, kInner, kHeads);
  Matrix x = made_up(kRows, kWidth, 41);
  const Matrix dy = made_up(kRows, kWidth, 42);
  Group alone;
  auto loss = [&] {
    Layer layer(alone, w, Layer::Split::kSequence);
    const auto y = layer.forward(x);
    return y.ok() ? dot(*y, dy) : NAN;
  };
  Layer layer(alone, w, Layer::Split::kTensor);
  ASSERT_TRUE(layer.forward(x).ok());
  const auto dx = layer.backward(dy);
  ASSERT_TRUE(dx.ok());
  expect_slopes(x, *dx, "x", loss);
  expect_slopes(w.attention[0], layer.attention.dwq, "Wq", loss);
  expect_slopes(w.attention[1], layer.attention.dwk, "Wk", loss);
  expect_slopes(w.attention[2], layer.attention.dwv, "Wv", loss);
  expect_slopes(w.attention[3], layer.attention.dwo, "Wo", loss);
  expect_slopes(w.a, layer.mlp.da, "A", loss);
  expect_slopes(w.b, layer.mlp.db, "B", loss);
  expect_slopes(w.gain1, layer.norm1.dgain, "gain 1", loss);
  expect_slopes(w.bias1, layer.norm1.dbias, "bias 1", loss);
  expect_slopes(w.gain2, layer.norm2.dgain, "gain 2", loss);
  expect_slopes(w.bias2, layer.norm2.dbias, "bias 2", loss);
}

TEST(TensorParallelHead, GradientsAreThoseOfFiniteDifferences) {
  constexpr size_t kRows = 4, kWidth = 5, kWords = 11;
  const std::vector<size_t> targets = {0, 10, 3, 3};
  Matrix x = made_up(kRows, kWidth, 43), w = made_up(kWords, kWidth, 44);
  Group alone;
  auto loss = [&] {
    const auto head = cross_entropy(alone, x, w, {0, kWords}, targets);
    return head.ok() ? head->loss : NAN;
  };
  const auto head = cross_entropy(alone, x, w, {0, kWords}, targets);
  ASSERT_TRUE(head.ok());
  expect_slopes(x, head->dx, "x", loss);
  expect_slopes(w, head->dw, "W", loss);
  const Matrix even(kWords, kWidth);  // all words alike
  EXPECT_NEAR(cross_entropy(alone, x, even, {0, kWords}, targets)->loss, std::log(11.0), 1e-6);
}

TEST(TensorParallelEmbedding, GradientIsThatOfTheLookup) {
  Matrix table = made_up(7, 3, 45);
  const Matrix dy = made_up(4, 3, 46);
  const std::vector<size_t> ids = {6, 0, 6, 2};
  expect_slopes(table, lookup_backward(dy, {0, 7}, ids), "table", [&] { return dot(lookup_part(table, 0, ids), dy); });
}

// Logits that overflow exp in float: the largest is subtracted first.
TEST(TensorParallelSoftmax, LargeLogitsStayFinite) {
  Matrix logits(1, 3);
  logits.v = {1000, 999, -1000};
  Group alone;
  const auto s = softmax(alone, logits);
  ASSERT_TRUE(s.ok());
  EXPECT_NEAR(s->p.v[0], 0.731058f, 1e-6f);
  EXPECT_NEAR(s->p.v[1], 0.268941f, 1e-6f);
  EXPECT_EQ(s->p.v[2], 0);
}

}  // namespace
}  // namespace parallel
