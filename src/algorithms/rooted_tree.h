// Double binary tree broadcast and reduce from or to any root: tree.h's two trees over all ranks but the root, each of
// which carries half of the data.
//
//     5 ranks, root 0          0                 The root stands above both trees and numbers the others 1, 2, ... from
//                           /     \              itself round the circle. Broadcast: it sends half 0 down the one tree
//     half 0               1       4   half 1    and half 1 down the other; every other rank gets both, and is inner
//                          |       |             in one of them (one rank excepted when their number is odd). Reduce:
//                          3       2             the same ways upwards, sums instead of copies.
//                         / \     / \    .
//                        2   4   1   3
//
//   what rank 3 does:     broadcast   recv half 0 from 1, keep it, send it to 2 and 4; recv half 1 from 2, keep it
//                         reduce      recv half 0 from 2 and 4, send (x2 + x3 + x4) to 1; send half 1 to 2
//
// Two lanes, one for each tree.
//
// Steps: 1 + depth of the trees over N - 1 ranks, at most 2 + ceil(log2(N - 1)). Bytes sent per rank: at most S (the
// root S/2 to each tree, an inner rank S/2 to each child). Order of addition: as the tree nests, the root's own first.
// Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
#pragma once

#include "algorithms/tree.h"

namespace rondo::algorithms {

/// A rank that is not the root in one of the two trees. Node numbers are ranks counted from the root's neighbour.
struct RootedNode {
  RootedNode(Rank rank, int nranks, Rank root, int tree)
      : node((rank - root - 1 + nranks) % nranks, nranks - 1, tree), tag(static_cast<uint16_t>(tree)) {
    auto to_rank = [=](Rank v) { return (v + 1 + root) % nranks; };
    for (int i = 0; i < node.num_children; ++i) children.push_back({to_rank(node.children[i]), tag});
    parent = {{node.parent < 0 ? root : to_rank(node.parent), tag}};
  }
  TreeNode node;
  uint16_t tag;
  PortSet parent, children;
};

/// Where the root finds the top of a tree.
inline PortSet top_of_tree(int nranks, Rank root, int tree) {
  return {{(TreeNode::top(nranks - 1, tree) + 1 + root) % nranks, static_cast<uint16_t>(tree)}};
}

template <class P>
void tree_broadcast(P& p, Rank rank, int nranks, Rank root) {
  p.chunks(2, 2);
  for (int tree = 0; tree < 2; ++tree) {
    p.lane(tree);
    if (nranks == 1) {
      p.copy(in(tree), out(tree));
    } else if (rank == root) {
      p.copy_send(in(tree), out(tree), top_of_tree(nranks, root, tree));
    } else {
      const RootedNode self(rank, nranks, root, tree);
      if (self.children.empty()) p.recv(self.parent, out(tree));
      else p.recv_copy_send(self.parent, out(tree), self.children);
    }
  }
}

template <class P>
void tree_reduce(P& p, Rank rank, int nranks, Rank root) {
  p.chunks(2, 2);
  for (int tree = 0; tree < 2; ++tree) {
    p.lane(tree);
    if (nranks == 1) {
      p.copy(in(tree), out(tree), Sum::kFinal);
    } else if (rank == root) {
      p.recv_reduce_copy(top_of_tree(nranks, root, tree), in(tree), out(tree), kOwnFirst, Sum::kFinal);
    } else {
      const RootedNode self(rank, nranks, root, tree);
      if (self.children.empty()) p.send(in(tree), self.parent);
      else p.recv_reduce_send(self.children, in(tree), self.parent, self.node.order());
    }
  }
}

}  // namespace rondo::algorithms
