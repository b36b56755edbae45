/* rondo's C ABI.
 *
 * Every function that can fail returns a rondo_status; nothing is thrown. rondo_last_error() returns the full text of
 * the error: rank, peer, operation, sequence number and the remedy. Function signatures do not change: later features
 * become fields of rondo_call and rondo_config, whose size_bytes must be their size in this release.
 *
 * Thread safety: several threads may use different communicators at once. rondo serialises the calls on one
 * communicator. The caller must make them in the same order on all ranks. rondo_comm_abort may be called from any
 * thread at any time. In a child of fork(), calls on a communicator of the parent return RONDO_UNSUPPORTED, except
 * rank, size, transport and destroy. rondo_comm_destroy does not affect the parent. pthread_cancel takes effect after
 * the call. */
#ifndef RONDO_RONDO_H_
#define RONDO_RONDO_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define RONDO_API __attribute__((visibility("default")))
#else
#define RONDO_API
#endif

/* In C++ an enum without a fixed underlying type cannot hold every int that a caller may pass. */
#ifdef __cplusplus
#define RONDO_ENUM_INT : int
extern "C" {
#else
#define RONDO_ENUM_INT
#endif

typedef struct rondo_comm rondo_comm; /* one rank's handle of a communicator */
typedef struct rondo_work rondo_work; /* one asynchronous operation */
typedef struct rondo_abort rondo_abort; /* cancels the making of communicators from another thread */

typedef enum rondo_status RONDO_ENUM_INT {
  RONDO_OK = 0,
  RONDO_INVALID_ARGUMENT = 1,
  RONDO_MISMATCH = 2,
  RONDO_TIMEOUT = 3,
  RONDO_PEER_LOST = 4,
  RONDO_ABORTED = 5,
  RONDO_SYSTEM = 6,
  RONDO_UNSUPPORTED = 7,
  RONDO_UNAUTHORIZED = 8,
  RONDO_IN_PROGRESS = 9,
  RONDO_INTERNAL = 10,
  RONDO_EXHAUSTED = 11,
  RONDO_CUDA_ERROR = 12
} rondo_status;

typedef enum rondo_dtype RONDO_ENUM_INT {
  RONDO_INT8 = 0,
  RONDO_UINT8 = 1,
  RONDO_INT32 = 2,
  RONDO_UINT32 = 3,
  RONDO_INT64 = 4,
  RONDO_UINT64 = 5,
  RONDO_FLOAT16 = 6,
  RONDO_FLOAT32 = 7,
  RONDO_FLOAT64 = 8,
  RONDO_BFLOAT16 = 9,
  RONDO_FLOAT8_E4M3 = 10,
  RONDO_FLOAT8_E5M2 = 11,
  RONDO_DTYPE_DEFAULT = 255 /* in rondo_call: derived from the call's dtype */
} rondo_dtype;

typedef enum rondo_op RONDO_ENUM_INT {
  RONDO_SUM = 0,
  RONDO_PROD = 1,
  RONDO_MAX = 2,
  RONDO_MIN = 3,
  RONDO_AVG = 4,
  RONDO_PREMUL_SUM = 5,
  RONDO_BAND = 6, /* bitwise and, or, exclusive or: of integers, in host memory */
  RONDO_BOR = 7,
  RONDO_BXOR = 8
} rondo_op;

/* The memory of all buffers of a communicator, equal on all its ranks. */
typedef enum rondo_memory RONDO_ENUM_INT {
  RONDO_MEMORY_HOST = 0,
  RONDO_MEMORY_CUDA = 1 /* device memory, reached through the CUDA driver; aligned to the elements of the call */
} rondo_memory;

/* Promises about the bits of a result (rondo_call.promises). rondo refuses a promise that it cannot keep. */
enum {
  RONDO_PROMISE_SAME_BITS_PER_RUN = 1 << 0,       /* always kept: same inputs, same plan, same bits */
  RONDO_PROMISE_RANK_ORDER = 1 << 1,              /* the bits of one process that adds ranks 0..N-1 in that order */
  RONDO_PROMISE_SAME_BITS_PER_SIZE = 1 << 2,      /* an element's bits do not depend on the call's element count */
  RONDO_PROMISE_SAME_BITS_PER_ALGORITHM = 1 << 3, /* ... nor on the algorithm */
  RONDO_PROMISE_SAME_BITS_PER_TRANSPORT = 1 << 4  /* ... nor on whether ranks are threads or processes */
};

/* Contains addresses, a port and a secret of 128 bits. All ranks of a communicator get the same id. Treat it as opaque
 * and confidential. */
typedef struct rondo_unique_id {
  char bytes[128];
} rondo_unique_id;

typedef struct rondo_config {
  size_t size_bytes;  /* sizeof(rondo_config) */
  double deadline_s;  /* for each operation; 0: RONDO_TIMEOUT_S or 600 */
  double init_deadline_s;   /* for making the communicator; 0: RONDO_INIT_TIMEOUT_S or 120 */
  const rondo_abort* abort; /* once raised, making the communicator or its children ends with RONDO_ABORTED; or NULL */
  const char* settings;     /* lines "key = value" of a configuration file; override the file and the environment; or
                             * NULL */
  rondo_memory memory;      /* of all buffers; equal on all ranks */
  int device;               /* RONDO_MEMORY_CUDA: this rank's device; -1: the calling thread's current one (else 0) */
  const int* devices; /* RONDO_MEMORY_CUDA, init_all: nranks devices, repeats allowed; NULL: rank modulo their number */
} rondo_config;
#define RONDO_CONFIG_INIT \
  { sizeof(rondo_config), 0, 0, NULL, NULL, RONDO_MEMORY_HOST, -1, NULL }

/* rondo_comm_split: this rank takes part but gets no communicator. */
#define RONDO_NO_COLOUR (-1)
/* rondo_recv with match_tags: receives from any rank. */
#define RONDO_ANY_RANK (-1)

typedef struct rondo_call {
  size_t size_bytes;       /* sizeof(rondo_call) */
  void* stream;            /* RONDO_MEMORY_CUDA: the CUDA stream that orders the call; NULL: the default one */
  rondo_dtype wire;        /* RONDO_DTYPE_DEFAULT: the call's dtype */
  rondo_dtype accumulator; /* RONDO_DTYPE_DEFAULT: the dtype's accumulator */
  rondo_dtype output;      /* RONDO_DTYPE_DEFAULT: the call's dtype */
  uint32_t promises;       /* RONDO_PROMISE_* or 0 */
  double deadline_s;       /* 0: the communicator's. On device memory it ends the call, not the stream, whose later work
                            * may run before the host sees the error: docs/cuda.md says what is then in `out` */
  const char* algorithm;   /* NULL: the planner's choice; equal on all ranks */
  const void* premul;      /* RONDO_PREMUL_SUM: this rank's scale: one element, see premul_memory */
  uint64_t tag;            /* shown in traces and errors; see match_tags */
  rondo_memory premul_memory; /* host: accumulator's type; device: input's type, read when the call runs */
  /* RONDO_MEMORY_CUDA: least and most thread blocks of the call's launch, up to 1024 and within the communicator's
   * limits; 0: those limits. Equal on all ranks */
  int min_blocks;
  int max_blocks;
  void* launch_event; /* RONDO_MEMORY_CUDA: a CUDA event, recorded when the driver reports that the call's kernel has
                       * begun, at the latest when it ends; NULL: none */
  int match_tags; /* send and recv of host memory: 1: match by tag, 0: by order (see rondo_send). Equal on both ranks */
  int* source;    /* recv with match_tags: gets the sender's rank before the call is done; NULL: nothing */
} rondo_call;
#define RONDO_CALL_INIT                                                                                           \
  {                                                                                                               \
    sizeof(rondo_call), NULL, RONDO_DTYPE_DEFAULT, RONDO_DTYPE_DEFAULT, RONDO_DTYPE_DEFAULT, 0, 0, NULL, NULL, 0, \
        RONDO_MEMORY_HOST, 0, 0, NULL, 0, NULL                                                                    \
  }

/* Returns the version of the library: "0.1.0". */
RONDO_API const char* rondo_version(void);
/* Returns the short text of a status. */
RONDO_API const char* rondo_status_string(rondo_status status);
/* Returns the last error of this communicator, or of this thread if comm is NULL. The string is valid until the
 * next rondo call of this thread. */
RONDO_API const char* rondo_last_error(const rondo_comm* comm);

/* Makes an id and opens its rendezvous in this process. The process must live until all ranks have joined. */
RONDO_API rondo_status rondo_get_unique_id(rondo_unique_id* id);
/* Makes a communicator. All ranks must call it with the same id and nranks, each with its own rank. */
RONDO_API rondo_status rondo_comm_init_rank(rondo_comm** comm, int nranks, const rondo_unique_id* id, int rank,
                                            const rondo_config* config);
/* Makes a communicator with all its ranks in this process: comms[0..nranks-1]. */
RONDO_API rondo_status rondo_comm_init_all(rondo_comm** comms, int nranks, const rondo_config* config);
/* Makes a communicator. Reads the rank and the number of ranks from the variables of torchrun, mpirun or srun. Without
 * such variables the communicator has one rank (docs/launch.md). */
RONDO_API rondo_status rondo_comm_init_env(rondo_comm** comm, const rondo_config* config);
RONDO_API rondo_status rondo_comm_rank(const rondo_comm* comm, int* rank);
RONDO_API rondo_status rondo_comm_size(const rondo_comm* comm, int* nranks);
/* Returns the transport's name, such as "shm" or "shm+tcp" (docs/settings.md), valid as long as comm; NULL for NULL. */
RONDO_API const char* rondo_comm_transport(const rondo_comm* comm);
/* Returns RONDO_OK, or the error that stopped the communicator. Never blocks. */
RONDO_API rondo_status rondo_comm_error(rondo_comm* comm);
/* Aborts the communicator. Later operations on all ranks return RONDO_ABORTED, and the error names this rank. A running
 * operation may still succeed. It does not wait. Any thread may call it. */
RONDO_API rondo_status rondo_comm_abort(rondo_comm* comm);
/* Waits for this rank's outstanding work and returns its first error. Afterwards operations, alloc, register, split and
 * grow fail. On host memory, also returns RONDO_MISMATCH if another rank's last 64 calls differ from this rank's. */
RONDO_API rondo_status rondo_comm_finalize(rondo_comm* comm);
/* Waits for this rank's outstanding work, then frees everything. comm may be NULL. A rondo_work stays valid and
 * reports the result. On device memory, after rondo_comm_abort, it waits at most a second: work that is queued behind
 * other work of its stream may end later, and everything is then freed in the background. */
RONDO_API rondo_status rondo_comm_destroy(rondo_comm* comm);

/* These make, raise and free an abort handle for rondo_config.abort. Any thread may raise it at any time. Calls that
 * wait with the handle then return RONDO_ABORTED within 100 ms. The handle may be freed before the communicators that
 * were made with it. */
RONDO_API rondo_status rondo_abort_create(rondo_abort** abort);
RONDO_API rondo_status rondo_abort_raise(rondo_abort* abort);
RONDO_API rondo_status rondo_abort_free(rondo_abort* abort);

/* These make a new communicator from an existing one (docs/communicators.md). They wait for all participating ranks,
 * at most until the init deadline. Therefore each rank needs its own thread. comm does not change. It and the new
 * communicator may be destroyed in any order.
 *
 * split:  all ranks call it. Ranks of equal colour form a communicator, ordered by (key, rank). A rank with
 *         RONDO_NO_COLOUR (or any negative colour) gets NULL.
 * shrink: all live ranks that are not excluded call it, also after errors and aborts. They form a communicator, in rank
 *         order. excluded has num_excluded ranks and is equal on all callers. Excluded ranks do not call it.
 * grow:   all ranks of comm call it and keep their numbers. Newcomers call rondo_comm_init_rank with new_nranks, the
 *         same id and the ranks from comm's size on. id may be NULL on all ranks but one, usually rank 0. */
RONDO_API rondo_status rondo_comm_split(rondo_comm* comm, int colour, int key, rondo_comm** part,
                                        const rondo_config* config);
RONDO_API rondo_status rondo_comm_shrink(rondo_comm* comm, const int* excluded, int num_excluded, rondo_comm** smaller,
                                         const rondo_config* config);
RONDO_API rondo_status rondo_comm_grow(rondo_comm* comm, int new_nranks, const rondo_unique_id* id,
                                       rondo_comm** larger, const rondo_config* config);

/* The collectives. call may be NULL for defaults. If work is NULL the call blocks. Otherwise it sets *work, which the
 * caller must pass to rondo_work_wait or rondo_work_free. With RONDO_MEMORY_CUDA a call returns when it is enqueued in
 * its stream, and rondo_comm_error reports later failures. The first call of a shape first waits for the other ranks to
 * connect. count_elems may be 0, but all ranks must still make the call. Buffers that a rank does not use may be NULL.
 *
 * A call is in place if the buffers overlap in this way. Other overlaps are refused.
 *
 *   all_reduce, broadcast, reduce    in == out
 *   reduce_scatter, scatter          out == in + rank * count_elems
 *   all_gather, gather               in == out + rank * count_elems
 *   all_to_all                       never
 *
 * Sizes of the buffers:
 *
 * all_reduce:     in, out: count_elems
 * reduce_scatter: in: nranks * count_elems, out: count_elems
 * all_gather:     in: count_elems, out: nranks * count_elems
 * broadcast:      in: count_elems on the root, out: count_elems
 * reduce:         in: count_elems, out: count_elems on the root
 * all_to_all:     in, out: nranks * count_elems; part p of in goes to rank p
 * gather:         in: count_elems, out: nranks * count_elems on the root
 * scatter:        in: nranks * count_elems on the root, out: count_elems
 * barrier:        returns after all ranks have called it */
RONDO_API rondo_status rondo_all_reduce(rondo_comm* comm, const void* in, void* out, uint64_t count_elems,
                                        rondo_dtype dtype, rondo_op op, const rondo_call* call, rondo_work** work);
RONDO_API rondo_status rondo_reduce_scatter(rondo_comm* comm, const void* in, void* out, uint64_t count_elems,
                                            rondo_dtype dtype, rondo_op op, const rondo_call* call, rondo_work** work);
RONDO_API rondo_status rondo_all_gather(rondo_comm* comm, const void* in, void* out, uint64_t count_elems,
                                        rondo_dtype dtype, const rondo_call* call, rondo_work** work);

RONDO_API rondo_status rondo_broadcast(rondo_comm* comm, const void* in, void* out, uint64_t count_elems,
                                       rondo_dtype dtype, int root, const rondo_call* call, rondo_work** work);
RONDO_API rondo_status rondo_reduce(rondo_comm* comm, const void* in, void* out, uint64_t count_elems,
                                    rondo_dtype dtype, rondo_op op, int root, const rondo_call* call,
                                    rondo_work** work);
RONDO_API rondo_status rondo_all_to_all(rondo_comm* comm, const void* in, void* out, uint64_t count_elems,
                                        rondo_dtype dtype, const rondo_call* call, rondo_work** work);
RONDO_API rondo_status rondo_gather(rondo_comm* comm, const void* in, void* out, uint64_t count_elems,
                                    rondo_dtype dtype, int root, const rondo_call* call, rondo_work** work);
RONDO_API rondo_status rondo_scatter(rondo_comm* comm, const void* in, void* out, uint64_t count_elems,
                                     rondo_dtype dtype, int root, const rondo_call* call, rondo_work** work);
RONDO_API rondo_status rondo_barrier(rondo_comm* comm, const rondo_call* call, rondo_work** work);

/* Sends or receives one message between two ranks. One rank calls send and the other calls recv, with the same count
 * and type. Calls between two ranks match in their order. A send may or may not return before its message is received.
 * Therefore put calls that wait for each other into a group. peer may be this rank. With zero elements there is no
 * message.
 *
 * If both calls have match_tags, the message matches by its tag: the oldest recv for which the tag and the sender are
 * right gets it. recv may pass RONDO_ANY_RANK as peer. Messages of different tags may be received in any order.
 * Messages of equal tag between two ranks are received in the order of their calls. Calls with and without match_tags
 * do not match each other, and neither delays the other. With zero elements there is a message. While a recv waits,
 * messages with other tags from the ranks that it accepts are received into memory of rondo's own. Calls that use the
 * buffer of a recv with match_tags do not wait for it: wait for it before you make them. */
RONDO_API rondo_status rondo_send(rondo_comm* comm, const void* buffer, uint64_t count_elems, rondo_dtype dtype,
                                  int peer, const rondo_call* call, rondo_work** work);
RONDO_API rondo_status rondo_recv(rondo_comm* comm, void* buffer, uint64_t count_elems, rondo_dtype dtype, int peer,
                                  const rondo_call* call, rondo_work** work);

/* Collectives with a count for each rank. counts and offsets have nranks values, in elements. The call reads them
 * before it returns. If offsets is NULL the parts follow one another. Counts may be zero.
 *
 * all_gather_v:     stores counts[r] elements of rank r at out + offsets[r]. counts must be equal on all ranks. Either
 *                   all ranks pass offsets or none does. In place: in == out + offsets[rank]
 * reduce_scatter_v: gives rank r the counts[r] elements of the sum at in + offsets[r]. counts and offsets as above
 * all_to_all_v:     sends in_counts[p] elements at in + in_offsets[p] to rank p, and stores out_counts[p] elements of
 *                   rank p at out + out_offsets[p]. Each pair of ranks checks that its counts agree (RONDO_MISMATCH) */
RONDO_API rondo_status rondo_all_gather_v(rondo_comm* comm, const void* in, void* out, const uint64_t* counts,
                                          const uint64_t* offsets, rondo_dtype dtype, const rondo_call* call,
                                          rondo_work** work);
RONDO_API rondo_status rondo_reduce_scatter_v(rondo_comm* comm, const void* in, void* out, const uint64_t* counts,
                                              const uint64_t* offsets, rondo_dtype dtype, rondo_op op,
                                              const rondo_call* call, rondo_work** work);
RONDO_API rondo_status rondo_all_to_all_v(rondo_comm* comm, const void* in, const uint64_t* in_counts,
                                          const uint64_t* in_offsets, void* out, const uint64_t* out_counts,
                                          const uint64_t* out_offsets, rondo_dtype dtype, const rondo_call* call,
                                          rondo_work** work);

/* Waits until the work is done and frees it. */
RONDO_API rondo_status rondo_work_wait(rondo_work* work);
/* Waits for at most this long until the work is done. Returns RONDO_IN_PROGRESS if it is not; it then goes on. Does not
 * free the work. */
RONDO_API rondo_status rondo_work_wait_for(rondo_work* work, double seconds);
/* Returns RONDO_OK if the work is done, RONDO_IN_PROGRESS, or the error. Does not free the work. */
RONDO_API rondo_status rondo_work_test(rondo_work* work);
/* Calls fn(arg, status, error) once, when the work is done, also if it fails; not in a forked child. error is the
 * sentence that explains the status, empty for RONDO_OK; it is valid during the call. fn runs on a thread of rondo's
 * own. The functions of the works of a communicator, and of communicators that were made from it, run one after the
 * other. fn may make calls and wait for them. But the order of functions may differ between ranks, so it must not wait
 * for a call that another rank makes in a later function. A work may have several functions. They are called even if
 * the work has been freed and the communicator destroyed. */
typedef void (*rondo_done_fn)(void* arg, rondo_status status, const char* error);
RONDO_API rondo_status rondo_work_on_done(rondo_work* work, rondo_done_fn fn, void* arg);
/* Frees the work without waiting. The operation still completes. */
RONDO_API rondo_status rondo_work_free(rondo_work* work);

/* start begins a group: it collects the operations that this thread issues on any communicators and ranks of this
 * process. end runs them as one batch in any order. An operation must not use another one's output. With work == NULL,
 * when rondo_group_end returns, an operation on host memory is done and one on devices is enqueued. Groups nest. The
 * outermost end runs all operations. */
RONDO_API rondo_status rondo_group_start(void);
RONDO_API rondo_status rondo_group_end(void);

/* alloc allocates memory that all ranks of the communicator can access. All ranks must call it, with equal bytes.
 * Operations whose buffers are all in such memory may copy straight from buffer to buffer. All ranks must call free.
 * The communicator frees the rest when it ends. */
RONDO_API rondo_status rondo_alloc(rondo_comm* comm, uint64_t bytes, void** ptr);
RONDO_API rondo_status rondo_free(rondo_comm* comm, void* ptr);

/* register makes the caller's own memory accessible to all ranks. On devices this is all or part of an allocation of
 * cuMemAlloc (cudaMalloc) on this rank's device. All ranks must call it; bytes may differ between ranks. Each
 * operation checks that its buffers still belong to the registered allocation. If one does not, all ranks run the
 * operation through staging memory. All ranks must call rondo_deregister before they free the memory. It waits for
 * this rank's calls. Afterwards no other process has the memory mapped. For host memory, register does nothing among
 * threads and returns RONDO_UNSUPPORTED among processes: use rondo_alloc. */
RONDO_API rondo_status rondo_register(rondo_comm* comm, void* ptr, uint64_t bytes);
RONDO_API rondo_status rondo_deregister(rondo_comm* comm, void* ptr);

/* Writes, as one line, the plan that such a call would get, and why: at most capacity bytes with the final 0. */
RONDO_API rondo_status rondo_explain_plan(rondo_comm* comm, const char* collective, uint64_t count_elems,
                                          rondo_dtype dtype, rondo_op op, char* text, size_t capacity);
/* Sets *us to the forecast time of such a call, in microseconds, in a sequence of calls without pause. call: as for the
 * collective, or NULL; premul may be NULL. */
RONDO_API rondo_status rondo_forecast_us(rondo_comm* comm, const char* collective, uint64_t count_elems,
                                         rondo_dtype dtype, rondo_op op, int root, const rondo_call* call, double* us);

/* Tracing (docs/tracing.md). rondo_trace_start records every instruction that this rank executes on the communicator
 * and keeps the newest num_records (0: 65536). rondo_trace_stop, or destroying the communicator, writes
 * directory/rank-R-comm-C.rtrace for `rondo trace`. rondo_flight_record writes this rank's current state to
 * directory/rank-R-comm-C.flight.json for `rondo diagnose`, even while another thread is in an operation. */
RONDO_API rondo_status rondo_trace_start(rondo_comm* comm, const char* directory, uint64_t num_records);
RONDO_API rondo_status rondo_trace_stop(rondo_comm* comm);
/* Adds an activity of the caller to the trace, in the timeline row `track`, from begin to end on rondo_trace_clock().
 * Does nothing if comm is not traced. The trace keeps the newest 65536 spans. */
RONDO_API uint64_t rondo_trace_clock(void);
RONDO_API rondo_status rondo_trace_span(rondo_comm* comm, const char* track, const char* name, uint64_t begin,
                                        uint64_t end);
RONDO_API rondo_status rondo_flight_record(rondo_comm* comm, const char* directory);

#ifdef __cplusplus
}
#endif
#endif /* RONDO_RONDO_H_ */
