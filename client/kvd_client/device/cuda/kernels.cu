// What an allocator does to bytes: table writes, zeroing and page moves, batched into few launches.
//
// A launch gets one submission: 64-bit words that kvd_client.device.cuda.submission lays out.
//
//   [0, 10)    header: ordered items, spread items, tiles, address of the pair of words to write
//              at the end (0: none), the two words, address of the block counter, address of the
//              lane to be done at the end (0: none), its number, lists
//   [10, ...)  where each list starts, counted from the first one, and where the last one ends
//   behind     one descriptor of 8 words per item, the ordered ones first; it names lists by number
//   behind     the lists of ids and values, end to end
//
// Ordered items are small table writes. Block 0 carries them out one after the other, so a later
// one may write what an earlier one wrote. Everything else is spread: cut into tiles that all
// blocks share. Moves have launches of their own. Whoever lays a submission out keeps things apart
// that do not commute.
//
// A submission travels as a kernel argument if it is small (no upload, nothing to be reused), or
// through memory. Offsets, addresses and ids have 64 bits everywhere.

typedef long long i64;
typedef unsigned long long u64;

#define HEADER_WORDS 10
#define ITEM_WORDS 8
#define INLINE_WORDS 500
#define ORDERED_ENTRIES_MAX 512
#define ENTRIES_PER_TILE 1024
#define THREADS 256
#define MOVE_THREADS 512
#define WIDE 4
#define LARGE_TILE_BYTES (WIDE * MOVE_THREADS * 16)

enum { ENTRIES = 0, ROWS = 1, ZERO = 2, MOVE = 3 };

struct Inline {
    i64 words[INLINE_WORDS];
};

// The last three words are called by what they hold for units. Entries of a table: what a key is
// multiplied by. Rows: pages of a row, address of the lengths, tokens of a page.
struct Item {
    i64 kind, first, second, third, address, unit_bytes, tile_bytes, unit_tiles;
};

struct Lists {
    const i64* starts;
    const i64* numbers;

    __device__ __forceinline__ const i64* at(i64 list) const { return numbers + starts[list]; }
    __device__ __forceinline__ i64 count(i64 list) const {
        return starts[list + 1] - starts[list];
    }
};

__device__ __forceinline__ void store_pair(i64 address, i64 first, i64 second) {
    // One 128-bit store, which is single-copy atomic: a process that is killed leaves both words
    // or neither, and no reader sees one old and one new.
    asm volatile(
        "{\n\t.reg .b128 pair;\n\tmov.b128 pair, {%1, %2};\n\t"
        "st.relaxed.sys.global.b128 [%0], pair;\n\t}"
        :: "l"(address), "l"(first), "l"(second) : "memory");
}

// ---- ordered items, by block 0 alone ------------------------------------------------------------

__device__ __forceinline__ bool last_of_its_key(const i64* keys, int place, int count) {
    for (int later = place + 1; later < count; ++later)
        if (keys[later] == keys[place]) return false;
    return true;
}

__device__ void write_ordered(const Item* item, const Lists& lists, i64* keys) {
    const int count = (int)lists.count(item->first);
    const i64* first = lists.at(item->first);
    for (int i = threadIdx.x; i < count; i += THREADS) keys[i] = first[i];
    __syncthreads();
    int* table = (int*)item->address;
    // Without a list all values are zero.
    const i64* second = item->second < 0 ? nullptr : lists.at(item->second);
    const i64* third = item->third < 0 ? nullptr : lists.at(item->third);
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const bool last = last_of_its_key(keys, i, count);
        if (item->kind == ENTRIES) {
            if (last) table[keys[i] * item->unit_bytes] = second ? (int)second[i] : 0;
        } else {
            // A row's places ascend, so its last one says how far the row reaches.
            const i64 row = keys[i], place = second[i];
            table[row * item->unit_bytes + place] = (int)third[i];
            if (last) ((int*)item->tile_bytes)[row] = (int)((place + 1) * item->unit_tiles);
        }
    }
    // Ahead of the next item's keys, and of its writes to the same entries.
    __syncthreads();
}

// ---- spread items -------------------------------------------------------------------------------

template <typename Word>
__device__ __forceinline__ void zero_run(char* to, i64 bytes) {
    const i64 count = bytes / sizeof(Word);
    Word* target = (Word*)to;
    for (i64 i = threadIdx.x; i < count; i += THREADS) target[i] = Word();
}

__device__ __forceinline__ i64 tiles_of(const Item* item, const Lists& lists) {
    const i64 count = lists.count(item->first);
    if ((item->kind & 255) == ENTRIES) return (count + ENTRIES_PER_TILE - 1) / ENTRIES_PER_TILE;
    return count * item->unit_tiles;
}

// The width that every address of an item is aligned to stands in bits 8 and up of its kind.
__device__ __forceinline__ void work_on_tile(const Item* item, const Lists& lists, i64 tile) {
    const int kind = (int)(item->kind & 255), width = (int)(item->kind >> 8);
    const i64* list = lists.at(item->first);
    if (kind == ENTRIES) {
        const i64 end = min((tile + 1) * ENTRIES_PER_TILE, lists.count(item->first));
        const i64* values = lists.at(item->second);
        int* table = (int*)item->address;
        for (i64 i = tile * ENTRIES_PER_TILE + threadIdx.x; i < end; i += THREADS)
            table[list[i]] = (int)values[i];
        return;
    }
    const i64 unit = tile / item->unit_tiles;
    const i64 offset = (tile - unit * item->unit_tiles) * item->tile_bytes;
    const i64 bytes = min(item->tile_bytes, item->unit_bytes - offset);
    char* to = (char*)item->address + offset + list[unit] * item->unit_bytes;
    if (width == 16) zero_run<uint4>(to, bytes);
    else if (width == 4) zero_run<unsigned>(to, bytes);
    else zero_run<char>(to, bytes);
}

__device__ __forceinline__ void write_words(const i64* words) {
    if (!words[3] && !words[7]) return;
    // The block that counts last has seen the fences of all others: every byte is in place before
    // the words that say so, for other processes, too.
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x) return;
    if (gridDim.x > 1) {
        unsigned* counter = (unsigned*)words[6];
        if (atomicAdd(counter, 1u) != gridDim.x - 1) return;
        *counter = 0;
        __threadfence_system();
    }
    if (words[3]) store_pair(words[3], words[4], words[5]);
    if (words[7]) {
        // Nobody who sees the lane done sees words, or bytes, of before.
        __threadfence_system();
        *(volatile i64*)words[7] = words[8];
    }
}

__device__ __forceinline__ void apply(const i64* words) {
    __shared__ i64 keys[ORDERED_ENTRIES_MAX];
    const i64 ordered = words[0], tiles = words[2];
    const i64* starts = words + HEADER_WORDS;
    const i64* descriptors = starts + words[9] + 1;
    const Item* items = (const Item*)descriptors;
    const Lists lists = {starts, descriptors + ITEM_WORDS * (ordered + words[1])};
    const bool shares = !(ordered && gridDim.x > 1);
    if (blockIdx.x == 0)
        for (i64 i = 0; i < ordered; ++i) write_ordered(items + i, lists, keys);
    // With table writes to do, block 0 leaves the tiles to the others.
    if (shares || blockIdx.x) {
        const i64 stride = shares ? gridDim.x : gridDim.x - 1;
        const Item* item = items + ordered;
        i64 begin = 0, end = tiles ? tiles_of(item, lists) : 0;
        for (i64 tile = shares ? blockIdx.x : blockIdx.x - 1; tile < tiles; tile += stride) {
            while (tile >= end) {
                ++item;
                begin = end;
                end += tiles_of(item, lists);
            }
            work_on_tile(item, lists, tile - begin);
        }
    }
    write_words(words);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) kvd_apply_inline(
    const __grid_constant__ Inline submission) {
    apply(submission.words);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) kvd_apply_staged(const i64* words) {
    apply(words);
}

// ---- moves --------------------------------------------------------------------------------------

struct Plain {
    template <typename Word>
    static __device__ __forceinline__ Word load(const Word* from) { return *from; }
    template <typename Word>
    static __device__ __forceinline__ void store(Word* to, Word word) { *to = word; }
};

// Past the first cache: with many small units it only costs.
struct Around {
    static __device__ __forceinline__ uint4 load(const uint4* from) {
        uint4 word;
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w) : "l"(from));
        return word;
    }
    static __device__ __forceinline__ void store(uint4* to, uint4 word) {
        asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};"
                     :: "l"(to), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w) : "memory");
    }
};

template <typename Word, typename Way>
__device__ __forceinline__ void copy_run(char* to, const char* from, int bytes) {
    const int count = bytes / (int)sizeof(Word);
    Word* target = (Word*)to;
    const Word* source = (const Word*)from;
    int i = threadIdx.x;
    // All loads of a round are in flight before its first store: that keeps memory busy.
    for (; i + (WIDE - 1) * MOVE_THREADS < count; i += WIDE * MOVE_THREADS) {
        Word held[WIDE];
#pragma unroll
        for (int k = 0; k < WIDE; ++k) held[k] = Way::load(source + i + k * MOVE_THREADS);
#pragma unroll
        for (int k = 0; k < WIDE; ++k) Way::store(target + i + k * MOVE_THREADS, held[k]);
    }
    for (; i < count; i += MOVE_THREADS) Way::store(target + i, Way::load(source + i));
}

// A launch moves the units of one item, and does nothing else.
__device__ __forceinline__ void move(const Item& item, int tiles, int count, const i64* list) {
    const int width = (int)(item.kind >> 8), unit_tiles = (int)item.unit_tiles;
    const i64 unit_bytes = item.unit_bytes, tile_bytes = item.tile_bytes;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int unit = tile / unit_tiles;
        const i64 offset = (tile - unit * unit_tiles) * tile_bytes;
        const int bytes = (int)min(tile_bytes, unit_bytes - offset);
        char* base = (char*)item.address + offset;
        const char* from = base + list[unit] * unit_bytes;
        char* to = base + list[count + unit] * unit_bytes;
        if (width == 16) {
            if (bytes >= LARGE_TILE_BYTES) copy_run<uint4, Plain>(to, from, bytes);
            else copy_run<uint4, Around>(to, from, bytes);
        } else if (width == 4) {
            copy_run<unsigned, Plain>(to, from, bytes);
        } else {
            copy_run<char, Plain>(to, from, bytes);
        }
    }
}

// With long lists only those travel through memory: a block that has to read its item before its
// ids before its bytes would wait for memory once more.
struct Move {
    Item item;
    i64 tiles, count;
    const i64* list;
};

extern "C" __global__ void __launch_bounds__(MOVE_THREADS, 1) kvd_move_inline(
    const __grid_constant__ Inline submission) {
    const i64* words = submission.words;
    const i64* starts = words + HEADER_WORDS;
    const i64* item = starts + 3;
    move(*(const Item*)item, (int)words[2], (int)starts[1], item + ITEM_WORDS);
}

extern "C" __global__ void __launch_bounds__(MOVE_THREADS, 1) kvd_move_staged(
    const __grid_constant__ Move submission) {
    move(submission.item, (int)submission.tiles, (int)submission.count, submission.list);
}
