/* rondo's vendor options for NCCL programs. ncclAllReduceConfig and the other *Config collectives of NCCL 2.31 and
 * later pass them to rondo's libnccl.so.2 through ncclCollConfig_t.ext, a list of options that NVIDIA's library
 * ignores.
 *
 *     ncclConfigExt_t order = {NULL, {RONDO_NCCL_VENDOR_ID, RONDO_NCCL_EXT_RANK_ORDER}, {.i = 1}};
 *     ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
 *     config.ext = &order;
 *     ncclAllReduceConfig(in, out, count, ncclFloat32, ncclSum, comm, stream, &config);
 *
 * Options are promises: rondo never ignores one. If it cannot keep an option it returns ncclInvalidUsage and names the
 * option (ncclGetLastError). All ranks must pass the same options. docs/types.md and docs/nccl.md explain them. */
#ifndef RONDO_NCCL_EXT_H_
#define RONDO_NCCL_EXT_H_

/* key.vendorId of all options below: "rnd". */
#define RONDO_NCCL_VENDOR_ID 0x726e64

/* key.optionId, and the member of val with its value. Values never change; new ones are added. */
enum {
  /* s: the accumulator type of sums, by rondo's name: "float", "double", "int32". */
  RONDO_NCCL_EXT_ACCUMULATION = 1,
  /* i: 0 or 1. The result has the same bits ... */
  RONDO_NCCL_EXT_SAME_BITS_PER_RUN = 2,       /* in every run */
  RONDO_NCCL_EXT_SAME_BITS_PER_SIZE = 3,      /* for any element count of the call */
  RONDO_NCCL_EXT_SAME_BITS_PER_ALGORITHM = 4, /* with any algorithm */
  RONDO_NCCL_EXT_SAME_BITS_PER_TRANSPORT = 5, /* for ranks as threads and as processes */
  RONDO_NCCL_EXT_RANK_ORDER = 6,              /* as if one process had added ranks 0 .. N-1 in that order */
  /* raw: a number, cast to a pointer, shown in traces and errors; overrides userProfilerTag. */
  RONDO_NCCL_EXT_TRACE_TAG = 7
};

#endif /* RONDO_NCCL_EXT_H_ */
