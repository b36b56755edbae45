/* rondo's vendor options for NCCL programs: what ncclAllReduceConfig and the other *Config collectives of NCCL 2.31 and
 * later can ask of rondo's libnccl.so.2 through ncclCollConfig_t.ext, a list of options that NVIDIA's library ignores.
 *
 *     ncclConfigExt_t order = {NULL, {RONDO_NCCL_VENDOR_ID, RONDO_NCCL_EXT_RANK_ORDER}, {.i = 1}};
 *     ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
 *     config.ext = &order;
 *     ncclAllReduceConfig(in, out, count, ncclFloat32, ncclSum, comm, stream, &config);
 *
 * Options are promises: what rondo cannot keep is refused with ncclInvalidUsage and a sentence that names it
 * (ncclGetLastError), never ignored. All ranks give the same ones. What they mean: docs/types.md, docs/nccl.md.
 */
#ifndef RONDO_NCCL_EXT_H_
#define RONDO_NCCL_EXT_H_

/* key.vendorId of all options below: "rnd". */
#define RONDO_NCCL_VENDOR_ID 0x726e64

/* key.optionId, and which member of val says what. Values never change; new ones are added. */
enum {
  /* s: the type in which sums are formed, by rondo's name: "float", "double", "int32". */
  RONDO_NCCL_EXT_ACCUMULATION = 1,
  /* i: 0 or 1. The result has the same bits ... */
  RONDO_NCCL_EXT_SAME_BITS_PER_RUN = 2,       /* in every run */
  RONDO_NCCL_EXT_SAME_BITS_PER_SIZE = 3,      /* however many elements the call has */
  RONDO_NCCL_EXT_SAME_BITS_PER_ALGORITHM = 4, /* with whatever algorithm */
  RONDO_NCCL_EXT_SAME_BITS_PER_TRANSPORT = 5, /* whether ranks are threads or processes */
  RONDO_NCCL_EXT_RANK_ORDER = 6,              /* as if one process had added ranks 0 .. N-1 in that order */
  /* raw: a number, cast to a pointer, that traces and errors show; stronger than userProfilerTag. */
  RONDO_NCCL_EXT_TRACE_TAG = 7
};

#endif /* RONDO_NCCL_EXT_H_ */
