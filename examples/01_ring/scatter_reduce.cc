// What "scatter" and "reduce" mean for one array, without any rank: every element of `source` goes to the place that
// `index` names, and what meets there is reduced. A reduce-scatter is the same idea for arrays of ranks: what meets are
// the ranks' elements, and the places are the ranks.
#include <cstdio>
#include <vector>

namespace {

/// sum: what stands at a place and all that comes there, added. mean: that, over the number of terms.
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
  print("mean, with what stood there", scatter_reduce(values, index, source, true));  // 5/3, 14/4, 8/2, 4/1
  return 0;
}
