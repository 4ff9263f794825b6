// Kernels of a replay's forward on a GPU: the pattern of kvd.testing.pattern, written and compared.
//
// Pages are found as an engine's kernels find them: the request table names a row's virtual pages,
// the band's map says where each lies. `read_tables` is the part of a forward that reads tables; it
// keeps what it read in arrays of the step, and the kernels behind it use those.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define GOLDEN 0x9E3779B97F4A7C15ULL
#define MIX_1 0xBF58476D1CE4E5B9ULL
#define MIX_2 0x94D049BB133111EBULL

// Counters, and the first mismatches in full: request, page, physical, byte, kind of finding.
#define RECORD_WORDS 6
enum { DIFFERS = 1, OUTSIDE = 2, UNBOUND = 3, NOT_ZERO = 4, TABLES_DIFFER = 5 };

__device__ u64 mixed(u64 word) {
    word = (word ^ (word >> 30)) * MIX_1;
    word = (word ^ (word >> 27)) * MIX_2;
    return word ^ (word >> 31);
}

__device__ u64 page_key(u64 seed, i64 request, i64 page) {
    u64 key = mixed((u64)request * GOLDEN + seed);
    return mixed(key ^ (((u64)page + 1) * MIX_2));
}

__device__ u64 token_word(u64 seed, i64 request, i64 page, i64 offset) {
    return mixed(page_key(seed, request, page) + ((u64)offset + 1) * GOLDEN) | 1;
}

__device__ u64 narrowed(u64 word, int word_bytes) {
    return word_bytes == 8 ? word : word & ((1ULL << (8 * word_bytes)) - 1);
}

__device__ u64 load(const u8* place, int word_bytes) {
    switch (word_bytes) {
        case 8: return *(const u64*)place;
        case 4: return *(const u32*)place;
        case 2: return *(const unsigned short*)place;
        default: return *place;
    }
}

__device__ void store(u8* place, u64 word, int word_bytes) {
    switch (word_bytes) {
        case 8: *(u64*)place = word; break;
        case 4: *(u32*)place = (u32)word; break;
        case 2: *(unsigned short*)place = (unsigned short)word; break;
        default: *place = (u8)word;
    }
}

__device__ void report(u64* counts, i64* records, int records_max, i64 request, i64 page,
                       i64 physical, i64 byte, i64 kind, i64 band) {
    u64 nth = atomicAdd(counts, 1ULL);
    if (nth >= (u64)records_max) return;
    i64* record = records + nth * RECORD_WORDS;
    record[0] = request;
    record[1] = page;
    record[2] = physical;
    record[3] = byte;
    record[4] = kind;
    record[5] = band;
}

// Where (row, place) lies by the tables on the device; a mismatch if the host thinks otherwise.
extern "C" __global__ void read_tables(const int* request_table, i64 row_pages, const int* map,
                                       i64 map_count, i64 count, const i64* rows, const i64* places,
                                       const i64* requests, const i64* expected, i64* found,
                                       i64 band, u64* counts, i64* records, int records_max) {
    i64 nth = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    if (nth >= count) return;
    i64 virtual_page = request_table[rows[nth] * row_pages + places[nth]];
    i64 physical = virtual_page >= 0 && virtual_page < map_count ? map[virtual_page] : 0;
    found[nth] = physical;
    if (physical != expected[nth])
        report(counts, records, records_max, requests[nth], places[nth], physical, expected[nth],
               TABLES_DIFFER, band);
}

// One block per token.
extern "C" __global__ void write_tokens(u8* arena, u64 seed, i64 entry_bytes, int word_bytes,
                                        i64 page_tokens, const i64* requests, const i64* positions,
                                        const i64* physical) {
    i64 nth = blockIdx.x;
    i64 page = positions[nth] / page_tokens, offset = positions[nth] % page_tokens;
    u64 word = narrowed(token_word(seed, requests[nth], page, offset), word_bytes);
    u8* entry = arena + (physical[nth] * page_tokens + offset) * entry_bytes;
    for (i64 at = (i64)threadIdx.x * word_bytes; at < entry_bytes; at += (i64)blockDim.x * word_bytes)
        store(entry + at, word, word_bytes);
}

// One block per slot; a fresh one has to read zero first.
extern "C" __global__ void write_states(u8* arena, u64 seed, i64 entry_bytes, int word_bytes,
                                        const i64* requests, const i64* versions, const i64* slots,
                                        const i64* fresh, i64 band, u64* counts, i64* records,
                                        int records_max) {
    i64 nth = blockIdx.x;
    u8* slot = arena + slots[nth] * entry_bytes;
    u64 word = narrowed(mixed(page_key(seed, requests[nth], versions[nth])) | 1, word_bytes);
    for (i64 at = (i64)threadIdx.x * word_bytes; at < entry_bytes; at += (i64)blockDim.x * word_bytes) {
        if (fresh[nth] && load(slot + at, word_bytes) != 0)
            report(counts, records, records_max, requests[nth], 0, slots[nth], at, NOT_ZERO, band);
        store(slot + at, word, word_bytes);
    }
}

// One block per page; tokens that were not written read zero.
extern "C" __global__ void check_pages(const u8* arena, u64 seed, i64 entry_bytes, int word_bytes,
                                       i64 page_tokens, i64 unit_end, const i64* requests,
                                       const i64* pages, const i64* physical, const i64* written,
                                       const i64* bound, i64 band, u64* counts, i64* records,
                                       int records_max) {
    __shared__ int wrong;
    i64 nth = blockIdx.x;
    i64 place = physical[nth];
    if (place <= 0 || place >= unit_end) {
        if (threadIdx.x == 0 && (place != 0 || bound[nth]))
            report(counts, records, records_max, requests[nth], pages[nth], place, 0,
                   place ? OUTSIDE : UNBOUND, band);
        return;
    }
    if (threadIdx.x == 0) wrong = 0;
    __syncthreads();
    i64 entry_words = entry_bytes / word_bytes, words = page_tokens * entry_words;
    const u8* start = arena + place * page_tokens * entry_bytes;
    for (i64 at = threadIdx.x; at < words; at += blockDim.x) {
        i64 offset = at / entry_words;
        u64 expected = 0;
        if (pages[nth] * page_tokens + offset < written[nth])
            expected = narrowed(token_word(seed, requests[nth], pages[nth], offset), word_bytes);
        if (load(start + at * word_bytes, word_bytes) != expected && !atomicExch(&wrong, 1))
            report(counts, records, records_max, requests[nth], pages[nth], place, at * word_bytes,
                   DIFFERS, band);
    }
}

extern "C" __global__ void check_states(const u8* arena, u64 seed, i64 entry_bytes, int word_bytes,
                                        i64 unit_end, const i64* requests, const i64* versions,
                                        const i64* slots, i64 band, u64* counts, i64* records,
                                        int records_max) {
    __shared__ int wrong;
    i64 nth = blockIdx.x, slot = slots[nth];
    if (slot <= 0 || slot >= unit_end) {
        if (threadIdx.x == 0)
            report(counts, records, records_max, requests[nth], 0, slot, 0, OUTSIDE, band);
        return;
    }
    if (threadIdx.x == 0) wrong = 0;
    __syncthreads();
    const u8* start = arena + slot * entry_bytes;
    u64 word = narrowed(mixed(page_key(seed, requests[nth], versions[nth])) | 1, word_bytes);
    for (i64 at = (i64)threadIdx.x * word_bytes; at < entry_bytes; at += (i64)blockDim.x * word_bytes)
        if (load(start + at, word_bytes) != word && !atomicExch(&wrong, 1))
            report(counts, records, records_max, requests[nth], 0, slot, at, DIFFERS, band);
}

extern "C" __global__ void flip_byte(u8* arena, i64 entry_bytes, int word_bytes, i64 entry) {
    i64 middle = entry_bytes / word_bytes / 2;
    u8* place = arena + entry * entry_bytes + middle * word_bytes;
    store(place, load(place, word_bytes) ^ 0x40, word_bytes);
}
