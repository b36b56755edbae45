// A convolutional network with BatchNorm learns to read digits, with Adadelta and a rate that falls with each epoch, a
// usual first test of FSDP. Its averages (buffers) are never sharded: each rank has those of its own images.
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>

#include <array>

#include "models.h"
#include "one_process.h"
#include "ranks.h"

namespace {

constexpr int64_t kSide = 16, kBatch = 32, kTest = 500;
constexpr int kEpochs = 4, kStepsOfEpoch = 40;
constexpr float kGamma = 0.7f;
constexpr double kTolerance = 1e-6;  // convolutions may add in another order at another memory alignment

rondo::fsdp::OptimizerConfig adadelta(int step) {
  float rate = 1;
  for (int epoch = (step - 1) / kStepsOfEpoch; epoch > 0; --epoch) rate *= kGamma;
  return {.rule = rondo::fsdp::Rule::kAdadelta, .lr = rate, .eps = 1e-6f};
}

// Seven-segment digits, anywhere in the picture, brighter or darker, on noise.
struct Digits {
  torch::Tensor images, labels;  // count x 1 x side x side, count

  Digits(int64_t count, uint64_t seed) {
    auto generator = at::detail::createCPUGenerator(seed);
    labels = torch::randint(10, {count}, generator, torch::kInt64);
    images = torch::randn({count, 1, kSide, kSide}, generator) * 0.25;
    const torch::Tensor places = torch::randint(0, 5, {count, 2}, generator, torch::kInt64);
    const torch::Tensor light = torch::rand({count}, generator) + 0.5;
    for (int64_t i = 0; i < count; ++i)
      draw(images[i][0], labels[i].item<int64_t>(), places[i][0].item<int64_t>(), places[i][1].item<int64_t>() + 2,
           light[i].item<double>());
  }

 private:
  // Bits for top, top left, top right, middle, bottom left, bottom right, bottom.
  static void draw(torch::Tensor image, int64_t digit, int64_t y, int64_t x, double light) {
    constexpr std::array<unsigned, 10> kSegments{0b1110111, 0b0010010, 0b1011101, 0b1011011, 0b0111010,
                                                 0b1101011, 0b1101111, 0b1010010, 0b1111111, 0b1111011};
    constexpr int64_t kRows[7][4] = {{0, 1, 0, 7},  {0, 6, 0, 1},  {0, 6, 6, 7},  {5, 6, 0, 7},
                                     {5, 11, 0, 1}, {5, 11, 6, 7}, {10, 11, 0, 7}};  // y from, to; x from, to
    for (size_t s = 0; s < 7; ++s) {
      if ((kSegments[static_cast<size_t>(digit)] >> (6 - s) & 1) == 0) continue;
      const auto& [y0, y1, x0, x1] = kRows[s];
      image.slice(0, y + y0, y + y1).slice(1, x + x0, x + x1).add_(light);
    }
  }
};

struct NetImpl : torch::nn::Module {
  NetImpl()
      : features(register_module(
            "features",
            torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3)), torch::nn::BatchNorm2d(8),
                                  torch::nn::ReLU(), torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3)),
                                  torch::nn::BatchNorm2d(16), torch::nn::ReLU(), torch::nn::MaxPool2d(2)))),
        hidden(register_module("hidden", Linear(16 * 6 * 6, 64))),
        head(register_module("head", Linear(64, 10))) {
    fill(*this);
  }
  // images: count x 1 x side x side. Returns count x 10 logarithms of probabilities.
  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor x = torch::relu(hidden(features->forward(images).flatten(1)));
    return torch::log_softmax(head(x), 1);
  }

  using Linear = rondo::torch::Holder<torch::nn::LinearImpl>;
  torch::nn::Sequential features;
  Linear hidden, head;
};
TORCH_MODULE(Net);

Digits batch(int step, int rank) { return {kBatch, static_cast<uint64_t>(step * 64 + rank)}; }

double share_of_right(const torch::Tensor& log_p, const Digits& d) {
  return log_p.argmax(1).eq(d.labels).to(torch::kFloat).mean().item<double>();
}

void train(rondo::Communicator& comm, const char* name, const rondo::torch::Policy& policy, const OneProcess& alone,
           const Digits& unseen) {
  Net net;
  auto sharded = rondo::torch::fully_shard(
      net, comm, {.policy = policy, .engine = {.optimizer = adadelta(1), .deterministic = true}});
  double first = 0, last = 0;
  for (int step = 1; step <= kEpochs * kStepsOfEpoch; ++step) {
    const Digits d = batch(step, comm.rank());
    torch::Tensor loss = torch::nll_loss(sharded(d.images), d.labels);
    (step == 1 ? first : last) = loss.item<double>();
    loss.backward();
    sharded.set_learning_rate(adadelta(step).lr);
    sharded.step();
  }
  net->eval();
  const torch::NoGradGuard no_grad;
  const double right = share_of_right(sharded(unseen.images), unseen);
  const double off = alone.compare(sharded, kTolerance);
  if (comm.rank() == 0)
    std::printf("  %-22s %zu units, loss %.2f to %.3f, %.1f %% of unseen digits right, largest difference %.1g\n", name,
                sharded.plan().units().size(), first, last, right * 100, off);
  expect(sharded.plan().units().size() >= 2, "there are several units");
  expect(last < first / 4, "it learns");
  expect(right > 0.9, "it reads more than 9 of 10 unseen digits, by the averages of its own images");
}

}  // namespace

bool run_digits(int nranks) {
  std::printf("digits: convolutions and BatchNorm, Adadelta, rate x %.1f each of %d epochs\n", kGamma, kEpochs);
  Net net;
  OneProcess alone(*net, nranks);
  for (int step = 1; step <= kEpochs * kStepsOfEpoch; ++step)
    alone.step(adadelta(step), [&](int rank) {
      const Digits d = batch(step, rank);
      return torch::nll_loss(net->forward(d.images), d.labels);
    });
  const Digits unseen(kTest, 1u << 30);
  net->eval();
  const torch::NoGradGuard no_grad;
  const double right = share_of_right(net->forward(unseen.images), unseen);
  std::printf("  %-22s %.1f %% of unseen digits right\n", "one process", right * 100);
  return run_ranks(nranks, [&](rondo::Communicator& comm) {
    train(comm, "wrap_types<Conv2d>", rondo::torch::wrap_types<torch::nn::Conv2dImpl>(), alone, unseen);
    train(comm, "min_params(1000)", rondo::torch::min_params(1000), alone, unseen);
  });
}
