// Scatter and reduce on one array, without ranks: every element of `source` goes to the place given by `index`, and
// elements with the same place are reduced. In a reduce-scatter among ranks the elements come from the ranks' arrays,
// and the places are the ranks.
#include <cstdio>
#include <vector>

namespace {

/// sum: the value at a place plus all elements that go there. mean: the sum divided by the number of terms.
std::vector<double> scatter_reduce(std::vector<double> values, const std::vector<size_t>& index,
                                   const std::vector<double>& source, bool mean) {
  std::vector<double> terms(values.size(), 1);
  for (size_t i = 0; i < source.size(); ++i) values[index[i]] += source[i], ++terms[index[i]];
  for (size_t i = 0; i < values.size() && mean; ++i) values[i] /= terms[i];
  return values;
}

void print(const char* name, const std::vector<double>& values) {
  std::printf("%-28s", name);
  for (const double v : values) std::printf(" %.4g", v);
  std::printf("\n");
}

}  // namespace

int main() {
  const std::vector<double> values = {1, 2, 3, 4}, source = {1, 2, 3, 4, 5, 6};
  const std::vector<size_t> index = {0, 1, 0, 1, 2, 1};
  print("values", values);
  print("source", source);
  print("index", {index.begin(), index.end()});
  print("sum", scatter_reduce(values, index, source, false));                         // 1+1+3, 2+2+4+6, 3+5, 4
  print("mean, with the old values", scatter_reduce(values, index, source, true));    // 5/3, 14/4, 8/2, 4/1
  return 0;
}
