// Kernels of a stress run's forwards and transfers on a GPU: words compared, words written.
//
// What is wrong is put into memory that the host sees, without anybody waiting for it.

typedef int i32;
typedef long long i64;
typedef unsigned long long u64;

#define UNKNOWN (-1)
#define FINDING_WORDS 3

// The first word counts findings; those that fit follow: subject, place in its lists, what was found.
__device__ void report(u64* findings, i64 findings_max, i64 subject, i64 nth, i64 found) {
    u64 place = atomicAdd(findings, 1ULL);
    if (place >= (u64)findings_max) return;
    i64* finding = (i64*)findings + 1 + place * FINDING_WORDS;
    finding[0] = subject;
    finding[1] = nth;
    finding[2] = found;
}

template <typename Word>
__device__ void check(const Word* memory, const i64* places, const i64* expected, i64 count,
                      i64 subject, u64* findings, i64 findings_max) {
    i64 nth = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    if (nth >= count) return;
    i64 found = *(const volatile Word*)(memory + places[nth]);
    if (expected[nth] != UNKNOWN && found != expected[nth])
        report(findings, findings_max, subject, nth, found);
}

extern "C" __global__ void check_int32(const i32* memory, const i64* places, const i64* expected,
                                       i64 count, i64 subject, u64* findings, i64 findings_max) {
    check(memory, places, expected, count, subject, findings, findings_max);
}

extern "C" __global__ void check_int64(const i64* memory, const i64* places, const i64* expected,
                                       i64 count, i64 subject, u64* findings, i64 findings_max) {
    check(memory, places, expected, count, subject, findings, findings_max);
}

extern "C" __global__ void write_int64(i64* memory, const i64* places, const i64* tags, i64 count) {
    i64 nth = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    if (nth < count) memory[places[nth]] = tags[nth];
}

extern "C" __global__ void fill_int64(i64* memory, i64 word, i64 count) {
    i64 nth = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    if (nth < count) memory[nth] = word;
}
