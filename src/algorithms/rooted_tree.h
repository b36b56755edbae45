// Double binary tree broadcast and reduce from or to any root: tree.h's two trees over all ranks but the root. Each
// tree carries half of the data.
//
//     5 ranks, root 0          0                 The root is above both trees and numbers the others 1, 2, ... in a
//                           /     \              circle. Broadcast: it sends half 0 down one tree and half 1 down the
//     half 0               1       4   half 1    other. Every other rank gets both and is an inner node of one tree
//                          |       |             (except one if their number is odd). Reduce: the same edges upwards,
//                          3       2             with sums instead of copies.
//                         / \     / \    .
//                        2   4   1   3
//
//   rank 3:              broadcast   recv half 0 from 1, keep it, send it to 2 and 4; recv half 1 from 2, keep it
//                        reduce      recv half 0 from 2 and 4, send (x2 + x3 + x4) to 1; send half 1 to 2
//
// On several hosts the root has two kinds of trees under it: trees of its local peers, and trees of the other hosts.
// Each host's node is the top of a tree of its ranks. The data crosses to each host once.
//
// Two lanes, one for each tree.
//
// Steps: 1 + depth of the trees over N - 1 ranks, at most 2 + ceil(log2(N - 1)). Bytes sent per rank: at most S (the
// root S/2 to each tree, an inner rank S/2 to each child). Order of addition: as the tree nests, the root's own operand
// first.
// Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
#pragma once

#include "algorithms/tree.h"

namespace rondo::algorithms {

/// A rank other than the root in one of the two trees. Node numbers are ranks, or hosts, counted from the root's
/// neighbour.
struct RootedNode {
  RootedNode(Rank rank, const HostLayout& hosts, Rank root, int tree)
      : hosts_(hosts), root_(root), home_(hosts.host(root)), tag_(static_cast<uint16_t>(tree)) {
    const int host = hosts.host(rank), num_ranks = hosts.num_ranks(host);
    const bool at_home = host == home_;
    const TreeNode inside =
        at_home ? TreeNode((hosts.local(rank) - hosts.local(root) - 1 + num_ranks) % num_ranks, num_ranks - 1, tree)
                : TreeNode(hosts.local(rank), num_ranks, tree);
    auto to_rank = [&](int v) { return at_home ? mate(v) : hosts.rank(host, v); };
    order = inside.order();
    for (int i = 0; i < inside.num_children; ++i) children.push_back({to_rank(inside.children[i]), tag_});
    parent = {{inside.parent >= 0 ? to_rank(inside.parent) : root, tag_}};
    if (at_home || inside.parent >= 0) return;
    const int num_hosts = hosts.num_hosts();
    const TreeNode across((host - home_ - 1 + num_hosts) % num_hosts, num_hosts - 1, tree);
    for (int i = 0; i < across.num_children; ++i) children.push_back({top_of_host(across.children[i]), tag_});
    if (across.parent >= 0) parent = {{top_of_host(across.parent), tag_}};
  }
  PortSet parent, children;
  Order order;

  /// The root's ports to the tops of a tree: of its local peers, and of the hosts.
  static PortSet tops(const HostLayout& hosts, Rank root, int tree) {
    RootedNode self(hosts, root, tree);
    PortSet ports;
    const int local_peers = hosts.num_ranks(self.home_) - 1, others = hosts.num_hosts() - 1;
    if (local_peers > 0) ports.push_back({self.mate(TreeNode::top(local_peers, tree)), self.tag_});
    if (others > 0) ports.push_back({self.top_of_host(TreeNode::top(others, tree)), self.tag_});
    return ports;
  }

 private:
  RootedNode(const HostLayout& hosts, Rank root, int tree)
      : hosts_(hosts), root_(root), home_(hosts.host(root)), tag_(static_cast<uint16_t>(tree)) {}
  Rank mate(int v) const { return hosts_.rank(home_, (v + 1 + hosts_.local(root_)) % hosts_.num_ranks(home_)); }
  Rank top_of_host(int v) const {
    const int host = (v + 1 + home_) % hosts_.num_hosts();
    return hosts_.rank(host, TreeNode::top(hosts_.num_ranks(host), static_cast<int>(tag_)));
  }
  const HostLayout& hosts_;
  Rank root_;
  int home_;
  uint16_t tag_;
};

template <class P>
void tree_broadcast(P& p, Rank rank, const HostLayout& hosts, Rank root) {
  p.chunks(2, 2);
  for (int tree = 0; tree < 2; ++tree) {
    p.lane(tree);
    if (rank == root) {
      p.copy_send(in(tree), out(tree), RootedNode::tops(hosts, root, tree));
    } else {
      const RootedNode self(rank, hosts, root, tree);
      if (self.children.empty()) p.recv(self.parent, out(tree));
      else p.recv_copy_send(self.parent, out(tree), self.children);
    }
  }
}

template <class P>
void tree_reduce(P& p, Rank rank, const HostLayout& hosts, Rank root) {
  p.chunks(2, 2);
  for (int tree = 0; tree < 2; ++tree) {
    p.lane(tree);
    if (rank == root) {
      p.recv_reduce_copy(RootedNode::tops(hosts, root, tree), in(tree), out(tree), kOwnFirst, Sum::kFinal);
    } else {
      const RootedNode self(rank, hosts, root, tree);
      if (self.children.empty()) p.send(in(tree), self.parent);
      else p.recv_reduce_send(self.children, in(tree), self.parent, self.order);
    }
  }
}

}  // namespace rondo::algorithms
