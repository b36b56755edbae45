// Double binary tree all-reduce: two trees over the same ranks, each carries half of the data up and down again.
//
//     tree 0 (chunk 0)    0        tree 1 (chunk 1)    3       Sums go up, the complete chunk comes down.
//                         |                            |       In tree 0 a rank's children are on either side of it: a
//                         2                            1       sum covers neighbouring ranks in ascending order.
//                        / \                          / \      Tree 1 is tree 0 with the ranks mirrored (N even) or
//                       1   3                        0   2     shifted by one (N odd): an inner rank of one tree is a
//                                                              leaf of the other (except one rank if N is odd).
//
//   4 ranks, rank 2:              tree 0  recv x1, x3; send (x1 + x2 + x3) to 0
//                                         recv the sum from 0, keep it, send it to 1 and 3
//                                 tree 1  send x2 to 1
//                                         recv the sum from 1, keep it
//
// On several hosts (HostTreeNode) the trees have two levels: a tree inside each host, whose top is the host's node in a
// tree of hosts. A sum leaves a host once.
//
// Four lanes, up and down of each tree: later loops' chunks go up while earlier ones come down. The root's up lane does
// both.
//
// Steps: 2 depth, depth <= ceil(log2 N) + 1. Bytes sent per rank: at most 2 S (inner in one tree: S/2 up, 2 S/2 down;
// leaf of the other: S/2 up). Order of addition: as the tree nests; on hosts and places by the layout's order.
// Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "rondo/host_layout.h"
#include "rondo/recorder.h"

namespace rondo::algorithms {

/// A rank's place in tree 0 or 1: pure rank arithmetic.
struct TreeNode {
  Rank rank;
  Rank parent = -1;  // -1: the root
  Rank children[2];  // ascending
  int num_children = 0;

  TreeNode(Rank r, int nranks, int tree) : rank(r) {
    const bool mirror = tree == 1 && nranks % 2 == 0;
    const int shift = tree == 1 && nranks % 2 == 1 ? 1 : 0;
    auto to_node = [=](int x) { return mirror ? nranks - 1 - x : (x + nranks - shift) % nranks; };
    auto to_rank = [=](int v) { return mirror ? nranks - 1 - v : (v + shift) % nranks; };
    const int v = to_node(r);
    if (v == 0) {
      int top = 1;
      while (2 * top < nranks) top *= 2;
      if (nranks > 1) add_child(to_rank(top));
      return;
    }
    const int bit = v & -v;
    const int up = (v - bit) | (2 * bit);
    parent = to_rank(up < nranks ? up : v - bit);
    if (bit == 1) return;
    add_child(to_rank(v - bit / 2));
    int offset = bit / 2;
    while (offset > 0 && v + offset >= nranks) offset /= 2;
    if (offset > 0) add_child(to_rank(v + offset));
    if (num_children == 2 && children[0] > children[1]) std::swap(children[0], children[1]);  // mirrored
  }

  /// The rank without a parent.
  static constexpr Rank top(int nranks, int tree) { return tree == 0 ? 0 : nranks % 2 == 0 ? nranks - 1 : 1 % nranks; }

  /// Operands are in ascending rank order.
  Order order() const {
    return own_after(static_cast<int>(
        std::count_if(children, children + num_children, [this](Rank child) { return child < rank; })));
  }

 private:
  void add_child(Rank child) { children[num_children++] = child; }
};

/// A rank's place in tree 0 or 1 on several hosts: a tree in each host, and above them a tree of hosts.
struct HostTreeNode {
  Rank rank;
  Rank parent = -1;
  std::vector<Rank> children;  // in its own host, then in others
  int children_before = 0;     // before the own operand: the local children with lower numbers

  HostTreeNode(Rank r, const HostLayout& hosts, int tree) : rank(r) {
    const int host = hosts.host(r);
    const TreeNode inside(hosts.local(r), hosts.num_ranks(host), tree);
    for (int i = 0; i < inside.num_children; ++i) children.push_back(hosts.rank(host, inside.children[i]));
    children_before = inside.order().position;
    if (inside.parent >= 0) parent = hosts.rank(host, inside.parent);
    if (inside.parent >= 0 || hosts.one_host()) return;
    const TreeNode across(host, hosts.num_hosts(), tree);
    for (int i = 0; i < across.num_children; ++i) children.push_back(top(hosts, across.children[i], tree));
    if (across.parent >= 0) parent = top(hosts, across.parent, tree);
  }

  PortSet to_children(uint16_t tag) const {
    PortSet ports;
    for (const Rank child : children) ports.push_back({child, tag});
    return ports;
  }
  Order order() const { return own_after(children_before); }
  static Rank top(const HostLayout& hosts, int host, int tree) {
    return hosts.rank(host, TreeNode::top(hosts.num_ranks(host), tree));
  }
};

template <class P>
void tree_all_reduce(P& p, Rank rank, const HostLayout& hosts) {
  p.chunks(2, 2);
  for (int tree = 0; tree < 2; ++tree) {
    const HostTreeNode node(rank, hosts, tree);
    const uint16_t up = static_cast<uint16_t>(2 * tree), down = static_cast<uint16_t>(2 * tree + 1);  // tags and lanes
    p.lane(up);
    if (node.parent < 0) {
      p.recv_reduce_copy_send(node.to_children(up), in(tree), out(tree), node.to_children(down), node.order(),
                              Sum::kFinal);
      continue;
    }
    if (node.children.empty()) p.send(in(tree), {{node.parent, up}});
    else p.recv_reduce_send(node.to_children(up), in(tree), {{node.parent, up}}, node.order());

    p.lane(down);
    if (node.children.empty()) p.recv({{node.parent, down}}, out(tree));
    else p.recv_copy_send({{node.parent, down}}, out(tree), node.to_children(down));
  }
}

}  // namespace rondo::algorithms
