// A second plugin: the star under another name, which must be registered beside the first.
#include "05_own_algorithm/star.h"

void rondo_register_algorithms(rondo::Status* status) {
  rondo::Algorithm row = kStar;
  row.name = "twin_star";
  *status = rondo::register_algorithm(row);
}
