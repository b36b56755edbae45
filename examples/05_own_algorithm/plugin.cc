// The star as a shared object, for `rondo check|explain|perf --plugin ./libown_algorithm.so --algo star`.
#include "star.h"

void rondo_register_algorithms(rondo::Status* status) { *status = rondo::register_algorithm(kStar); }
