// A plugin whose algorithm leaves out a rank. `rondo --plugin` must refuse it.
#include "05_own_algorithm/star.h"

namespace {

void forgetful_star(rondo::Recorder& p, rondo::Rank rank, int nranks, rondo::Rank root) {
  if (rank != 3 || nranks == 1) return star_all_reduce(p, rank, nranks, root);
  p.chunks(1, 1);
  p.lane(0);
  p.recv({{0, 0, rondo::kGroupAll}}, rondo::out(0));
}

}  // namespace

void rondo_register_algorithms(rondo::Status* status) {
  rondo::Algorithm row = kStar;
  row.name = "forgetful_star";
  row.record = forgetful_star;
  *status = rondo::register_algorithm(row);
}
