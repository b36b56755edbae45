/* The placement of two virtual CPUs on the host, and the load of other programs.
 *
 * A hypervisor moves virtual CPUs: sibling hyper-threads, one shared cache, two caches far apart. Small messages differ
 * by 3x between these, so every measured point records its placement. The probe passes a cache line back and forth.
 *
 * Not thread safe: one probe at a time in a process. The probing thread restores its CPU mask.
 */
#ifndef RONDO_BENCH_PLACEMENT_H_
#define RONDO_BENCH_PLACEMENT_H_

/* One-way time of a cache line between the CPUs cpu_a (this thread moves there) and cpu_b, best of 20 batches. */
double placement_probe_ns(int cpu_a, int cpu_b);

/* "smt" below 35 ns, "near" below 170 ns, else "far"; "one" if there is only one CPU (ns == 0). */
const char* placement_name(double ns);

/* True if two probes of the same CPUs show different placements: another name and more than 1.3x apart. */
int placement_moved(double before_ns, double after_ns);

/* CPU seconds of work on the whole machine since it started, stolen time included (10 ms steps). */
double machine_busy_s(void);

/* CPU seconds of this process and its ended children. */
double own_busy_s(void);

/* The CPUs that this process may use, ascending. Writes at most `capacity` of them and returns their number. */
int allowed_cpus(int* cpus, int capacity);

/* Pins the calling thread (and threads that it makes later) to one CPU. Returns 0 or -1. */
int pin_to_cpu(int cpu);

double now_s(void);

#endif /* RONDO_BENCH_PLACEMENT_H_ */
