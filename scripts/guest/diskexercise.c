/*
 * diskexercise: writes seeded patterns to a block device with O_DIRECT, reads them back, and counts what is wrong.
 *
 *   diskexercise --device /dev/vda --length 64M --threads 4 --ops 1000
 *
 * Each thread owns an equal slice of the region and knows for every 512-byte sector of it how many times that sector
 * was written (its generation; 0 = not yet). A sector's content follows from seed, sector and generation alone, so
 * a lost write, a torn one, one that went elsewhere and a stale read all show, and are told apart.
 *
 * Operations are drawn from a seeded generator, of sizes from 512 bytes to 1 MiB, more than half of them under
 * 16 KiB. With the same seed, region, threads and ops, --verify-only redraws them without doing them and verifies
 * what an earlier, error-free run with --ops must have left.
 *
 * --until-input instead of --ops goes on until a line comes on standard input; --progress N prints a line every N
 * operations, so that whoever watches can act at a moment that means something. It says also the longest time since
 * the last such line in which no operation of any thread ended.
 *
 * Exit status: 0 = no error and no mismatch, 1 = some, 2 = wrong usage.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SECTOR_BYTES = 512,
    WORDS_PER_SECTOR = SECTOR_BYTES / sizeof(uint64_t),
    MAX_IO_BYTES = 1 << 20,
    MAX_IO_SECTORS = MAX_IO_BYTES / SECTOR_BYTES,
    MAX_IO_SECTORS_LOG2 = 11,
    BUFFER_ALIGNMENT_BYTES = 4096, /* O_DIRECT's on every device there is */
    MAX_THREADS = 64,
    MAX_MESSAGES = 20, /* the counts go on; twenty lines are enough to see what happened */
};

struct options {
    const char *device;
    uint64_t offset_bytes, length_bytes;
    uint64_t seed;
    uint64_t ops; /* per thread; 0 = until SIGTERM or, with until_input, until anything comes on stdin */
    uint64_t progress_ops;
    unsigned threads;
    bool until_input;
    bool verify_only;
};

/* What one thread owns: sectors [first_sector, first_sector + sectors) of the device. */
struct slice {
    pthread_t thread;
    uint64_t first_sector, sectors;
    uint64_t random_state;
    uint32_t *generations;
    uint64_t *buffer;
};

static struct options options = {.threads = 1};
static int device_fd;
static atomic_bool told_to_stop; /* lock-free, so a signal handler may set it */

static atomic_uint_least64_t ops_done, bytes_written, bytes_read, io_errors, mismatched_sectors, longest_stall_ns;
static atomic_uint_least64_t last_end_ns, longest_gap_ns;
static atomic_uint messages;

static void fail_usage(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("diskexercise: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

static void complain(const char *format, ...) {
    if (atomic_fetch_add(&messages, 1) >= MAX_MESSAGES)
        return;
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    printf("%s\n", line); /* one call, so that the lines of different threads do not mix */
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* splitmix64 (Steele, Lea, Flood 2014): its finalizer is a bijection, so different inputs stay different. */
static uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static uint64_t next_random(struct slice *slice) { return mix(slice->random_state += 0x9e3779b97f4a7c15u); }

static uint64_t sector_key(uint64_t sector, uint32_t generation) {
    return mix(mix(mix(options.seed) ^ sector) ^ generation);
}

/* One addition a word keeps the pattern cheap enough for an emulated processor, and no two sectors' alike. */
static uint64_t pattern_word(uint64_t key, unsigned index) { return key + index * 0x9e3779b97f4a7c15u; }

static void fill_sector(uint64_t *words, uint64_t sector, uint32_t generation) {
    const uint64_t key = sector_key(sector, generation);
    for (unsigned i = 0; i < WORDS_PER_SECTOR; i++)
        words[i] = pattern_word(key, i);
}

static bool sector_holds(const uint64_t *words, uint64_t sector, uint32_t generation) {
    const uint64_t key = sector_key(sector, generation);
    for (unsigned i = 0; i < WORDS_PER_SECTOR; i++)
        if (words[i] != pattern_word(key, i))
            return false;
    return true;
}

static void describe_mismatch(const uint64_t *words, uint64_t sector, uint32_t expected) {
    static const uint64_t zeroes[WORDS_PER_SECTOR];
    atomic_fetch_add(&mismatched_sectors, 1);
    for (uint32_t stale = expected; stale-- > 1;) {
        if (sector_holds(words, sector, stale)) {
            complain("sector %" PRIu64 ": holds write %" PRIu32 ", but write %" PRIu32 " was acknowledged", sector, stale,
                     expected);
            return;
        }
    }
    complain("sector %" PRIu64 ": write %" PRIu32 " was acknowledged, but it holds %s", sector, expected,
             memcmp(words, zeroes, SECTOR_BYTES) == 0 ? "zeroes" : "something else");
}

static void raise_to(atomic_uint_least64_t *longest_ns, uint64_t elapsed_ns) {
    uint64_t longest = atomic_load(longest_ns);
    while (elapsed_ns > longest && !atomic_compare_exchange_weak(longest_ns, &longest, elapsed_ns))
        ;
}

static void note_end(uint64_t started_ns) {
    const uint64_t ended_ns = now_ns(), before_ns = atomic_exchange(&last_end_ns, ended_ns);
    raise_to(&longest_stall_ns, ended_ns - started_ns);
    if (before_ns != 0 && before_ns < ended_ns) /* another thread may have read the clock later and stored sooner */
        raise_to(&longest_gap_ns, ended_ns - before_ns);
}

/* Transfers exactly the extent, or counts one error: a device never has a reason to transfer less. */
static bool transfer(bool is_write, struct slice *slice, uint64_t sector, uint64_t sectors) {
    const size_t length = sectors * SECTOR_BYTES;
    const off_t offset = (off_t)(sector * SECTOR_BYTES);
    const uint64_t started_ns = now_ns();
    const ssize_t done = is_write ? pwrite(device_fd, slice->buffer, length, offset)
                                  : pread(device_fd, slice->buffer, length, offset);
    note_end(started_ns);
    if (done == (ssize_t)length) {
        atomic_fetch_add(is_write ? &bytes_written : &bytes_read, length);
        return true;
    }
    atomic_fetch_add(&io_errors, 1);
    complain("%s of %zu bytes at sector %" PRIu64 ": %s", is_write ? "write" : "read", length, sector,
             done < 0 ? strerror(errno) : "fewer bytes than asked for");
    return false;
}

static void write_extent(struct slice *slice, uint64_t sector, uint64_t sectors) {
    uint32_t *generations = slice->generations + (sector - slice->first_sector);
    for (uint64_t i = 0; i < sectors; i++)
        generations[i]++;
    if (options.verify_only)
        return;
    for (uint64_t i = 0; i < sectors; i++)
        fill_sector(slice->buffer + i * WORDS_PER_SECTOR, sector + i, generations[i]);
    if (!transfer(true, slice, sector, sectors))
        memset(generations, 0, sectors * sizeof *generations); /* may hold the old, the new or a mix */
}

static void read_extent(struct slice *slice, uint64_t sector, uint64_t sectors) {
    if (!transfer(false, slice, sector, sectors))
        return;
    const uint32_t *generations = slice->generations + (sector - slice->first_sector);
    for (uint64_t i = 0; i < sectors; i++) {
        const uint64_t *words = slice->buffer + i * WORDS_PER_SECTOR;
        if (generations[i] != 0 && !sector_holds(words, sector + i, generations[i]))
            describe_mismatch(words, sector + i, generations[i]);
    }
}

static void flush(void) {
    const uint64_t started_ns = now_ns();
    if (fdatasync(device_fd) != 0) {
        atomic_fetch_add(&io_errors, 1);
        complain("flush: %s", strerror(errno));
    }
    note_end(started_ns);
}

static void run_one(struct slice *slice) {
    const uint64_t choice = next_random(slice) % 16;
    const uint64_t size_class = next_random(slice) % (MAX_IO_SECTORS_LOG2 + 1);
    uint64_t sectors = 1 + next_random(slice) % (UINT64_C(1) << size_class);
    if (sectors > slice->sectors)
        sectors = slice->sectors;
    const uint64_t sector = slice->first_sector + next_random(slice) % (slice->sectors - sectors + 1);

    if (choice < 9)
        write_extent(slice, sector, sectors);
    else if (options.verify_only)
        return;
    else if (choice < 15)
        read_extent(slice, sector, sectors);
    else
        flush();
}

static void count_op(void) {
    const uint64_t done = atomic_fetch_add(&ops_done, 1) + 1;
    if (options.progress_ops != 0 && done % options.progress_ops == 0)
        printf("progress ops=%" PRIu64 " errors=%" PRIu64 " longest_gap_us=%" PRIu64 "\n", done,
               (uint64_t)atomic_load(&io_errors), (uint64_t)atomic_exchange(&longest_gap_ns, 0) / 1000);
}

static void *exercise(void *argument) {
    struct slice *slice = argument;
    for (uint64_t op = 0; (options.ops == 0 || op < options.ops) && !told_to_stop; op++) {
        run_one(slice);
        if (!options.verify_only)
            count_op();
    }
    const uint64_t end = slice->first_sector + slice->sectors;
    for (uint64_t sector = slice->first_sector; sector < end; sector += MAX_IO_SECTORS)
        read_extent(slice, sector, end - sector < MAX_IO_SECTORS ? end - sector : MAX_IO_SECTORS);
    return NULL;
}

static uint64_t parse_number(const char *name, const char *text, bool is_bytes) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 0);
    unsigned shift = 0;
    if (is_bytes && end != text && *end != '\0') {
        static const char suffixes[] = "KMGT";
        const char *suffix = strchr(suffixes, *end);
        if (suffix != NULL && end[1] == '\0') {
            shift = 10 * (unsigned)(suffix - suffixes + 1);
            end++;
        }
    }
    if (errno != 0 || end == text || *end != '\0' || *text == '-' || value > (UINT64_MAX >> shift))
        fail_usage("--%s: '%s' is not a number%s", name, text, is_bytes ? " of bytes (K, M, G, T allowed)" : "");
    return value << shift;
}

static void parse_options(int argc, char **argv) {
    static const struct option names[] = {
        {"device", required_argument, NULL, 'd'},   {"offset", required_argument, NULL, 'o'},
        {"length", required_argument, NULL, 'l'},   {"seed", required_argument, NULL, 's'},
        {"ops", required_argument, NULL, 'n'},      {"threads", required_argument, NULL, 't'},
        {"progress", required_argument, NULL, 'p'}, {"until-input", no_argument, NULL, 'u'},
        {"verify-only", no_argument, NULL, 'v'},    {NULL, 0, NULL, 0},
    };
    int option, index;
    while ((option = getopt_long(argc, argv, "", names, &index)) != -1) {
        switch (option) {
        case 'd': options.device = optarg; break;
        case 'o': options.offset_bytes = parse_number("offset", optarg, true); break;
        case 'l': options.length_bytes = parse_number("length", optarg, true); break;
        case 's': options.seed = parse_number("seed", optarg, false); break;
        case 'n': options.ops = parse_number("ops", optarg, false); break;
        case 'p': options.progress_ops = parse_number("progress", optarg, false); break;
        case 'u': options.until_input = true; break;
        case 'v': options.verify_only = true; break;
        case 't': {
            const uint64_t threads = parse_number("threads", optarg, false);
            if (threads < 1 || threads > MAX_THREADS)
                fail_usage("--threads: from 1 to %d", MAX_THREADS);
            options.threads = (unsigned)threads;
            break;
        }
        default: fail_usage("options: --device PATH --length BYTES [--offset BYTES] [--ops N | --until-input]"
                            " [--threads N] [--seed N] [--progress N] [--verify-only]");
        }
    }
    if (options.device == NULL || options.length_bytes == 0 || optind != argc)
        fail_usage("--device and --length are required, and nothing follows the options");
    if (options.offset_bytes % SECTOR_BYTES != 0 || options.length_bytes % SECTOR_BYTES != 0)
        fail_usage("--offset and --length are multiples of %d", SECTOR_BYTES);
    if (options.length_bytes / SECTOR_BYTES < options.threads)
        fail_usage("--length: at least one sector per thread");
    if (options.until_input && options.ops != 0)
        fail_usage("--until-input and --ops exclude each other");
    if (options.verify_only && options.ops == 0)
        fail_usage("--verify-only needs the --ops of the run that it verifies");
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (memory == NULL)
        fail_usage("not enough memory for this --length");
    return memory;
}

static void prepare_slice(struct slice *slice, unsigned index) {
    const uint64_t per_thread = options.length_bytes / SECTOR_BYTES / options.threads;
    slice->first_sector = options.offset_bytes / SECTOR_BYTES + index * per_thread;
    slice->sectors = per_thread;
    slice->random_state = mix(options.seed + index + 1);
    slice->generations = allocate(per_thread, sizeof *slice->generations);
    if (posix_memalign((void **)&slice->buffer, BUFFER_ALIGNMENT_BYTES, MAX_IO_BYTES) != 0)
        fail_usage("not enough memory for the buffers");
}

static void stop(int signal_number) {
    (void)signal_number;
    told_to_stop = 1;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    parse_options(argc, argv);
    device_fd = open(options.device, (options.verify_only ? O_RDONLY : O_RDWR) | O_DIRECT | O_CLOEXEC);
    if (device_fd < 0)
        fail_usage("%s: %s", options.device, strerror(errno));
    const struct sigaction on_stop = {.sa_handler = stop, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &on_stop, NULL);
    sigaction(SIGINT, &on_stop, NULL);

    struct slice *slices = allocate(options.threads, sizeof *slices);
    for (unsigned i = 0; i < options.threads; i++)
        prepare_slice(&slices[i], i);
    const uint64_t started_ns = now_ns();
    for (unsigned i = 0; i < options.threads; i++)
        if (pthread_create(&slices[i].thread, NULL, exercise, &slices[i]) != 0)
            fail_usage("cannot start thread %u", i);
    if (options.until_input) {
        getchar();
        told_to_stop = 1;
    }
    for (unsigned i = 0; i < options.threads; i++)
        pthread_join(slices[i].thread, NULL);

    const uint64_t errors = atomic_load(&io_errors), mismatches = atomic_load(&mismatched_sectors);
    printf("diskexercise ops=%" PRIu64 " written_bytes=%" PRIu64 " read_bytes=%" PRIu64 " errors=%" PRIu64
           " mismatches=%" PRIu64 " longest_stall_ms=%" PRIu64 " elapsed_ms=%" PRIu64 "\n",
           (uint64_t)atomic_load(&ops_done), (uint64_t)atomic_load(&bytes_written), (uint64_t)atomic_load(&bytes_read),
           errors, mismatches, (uint64_t)atomic_load(&longest_stall_ns) / 1000000, (now_ns() - started_ns) / 1000000);
    return errors == 0 && mismatches == 0 ? 0 : 1;
}
