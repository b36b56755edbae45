// The networks between hosts, by name. RONDO_TRANSPORT=shm+NAME uses shared memory between ranks of one host and the
// network between hosts; RONDO_TRANSPORT=NAME uses it between all ranks. The code of each is in transport/NAME/, and
// transport/net/network.h describes a row. With RONDO_TRANSPORT=auto, the network between hosts is the first row that
// all ranks prefer.
#pragma once

#define RONDO_NETWORKS(X) \
  X(ucx)                  \
  X(tcp)

/// The values of RONDO_TRANSPORT for a network.
#define RONDO_TRANSPORTS_OF(name) "|shm+" #name "|" #name
