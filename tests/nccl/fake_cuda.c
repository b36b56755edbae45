/* A CUDA driver for device_memory_test.cc: one function, for which addresses between two bounds are device memory and
 * the 16 bytes before them managed memory. Everything else is unknown to it, as host memory is to the real one. */
#include <stdint.h>

static uint64_t begin, end;

void fake_cuda_set(uint64_t first, uint64_t last) {
  begin = first;
  end = last;
}

int cuPointerGetAttribute(void* to, int attribute, uint64_t pointer) {
  const int managed = pointer + 16 >= begin && pointer < begin;
  if (!managed && (pointer < begin || pointer >= end)) return 1; /* CUDA_ERROR_INVALID_VALUE */
  *(unsigned*)to = attribute == 8 ? (unsigned)managed : 2u;      /* CU_MEMORYTYPE_DEVICE */
  return 0;
}
