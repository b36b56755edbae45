/* Where the host has put two virtual CPUs, and who else uses the machine.
 *
 * A hypervisor moves virtual CPUs: sibling hyper-threads, one shared cache, two caches far apart. Small messages differ
 * by 3x between these, so every measured point says which it met. Probed by handing a cache line back and forth.
 *
 * Not thread safe: one probe at a time in a process; the probing thread comes back to its own CPU mask.
 */
#ifndef RONDO_BENCH_PLACEMENT_H_
#define RONDO_BENCH_PLACEMENT_H_

/* One-way hand-over of a cache line between the CPUs cpu_a (this thread goes there) and cpu_b, best of 20 batches. */
double placement_probe_ns(int cpu_a, int cpu_b);

/* "smt" below 35 ns, "near" below 170 ns, "far" from there; "one" when there is only one CPU (ns == 0). */
const char* placement_name(double ns);

/* Whether two probes of the same CPUs speak of two placements: another name and more than 1.3x apart. */
int placement_moved(double before_ns, double after_ns);

/* CPU seconds that the whole machine has spent working since it started, stolen time included (10 ms steps). */
double machine_busy_s(void);

/* CPU seconds of this process and its ended children. */
double own_busy_s(void);

/* CPUs that this process may use, ascending; at most capacity are written. Returns how many there are. */
int allowed_cpus(int* cpus, int capacity);

/* Pins the calling thread (and threads it makes from now on) to one CPU. 0 or -1. */
int pin_to_cpu(int cpu);

double now_s(void);

#endif /* RONDO_BENCH_PLACEMENT_H_ */
