/*
 * explain.c: what a device's memory is used for and what to do about it, as text. The words at the beginning are PyTorch's own, in its order,
 * because people know them and tools look for them; then the advice; then the table that leads from what nvidia-smi shows to our counters.
 *
 * Made from the facts alone: it works for a pool that is lost, and takes no memory. Whatever the facts do not know is said, not guessed.
 *
 * LOCKING: none; no state.
 */
#include <string.h>

#include "stats/text/facts.h"
#include "stats/text/out.h"

#define ADVICE_MAX 2

/* A few words, made in an argument: they live until the call they are made for is over. */
struct words {
    char text[48];
};

/* As PyTorch writes sizes. */
static struct words size_words(uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB"};
    struct words words;
    double size = (double)bytes;
    int unit = 0;
    for (; size >= 1024 && unit < 3; unit++)
        size /= 1024;
    snprintf(words.text, sizeof words.text, unit ? "%.2f %s" : "%.0f %s", size, units[unit]);
    return words;
}

#define SIZE(bytes) size_words(bytes).text

/* Ids of the processes of one kind, as many as there is room for. */
static struct words pid_words(const struct facts *f, enum facts_kin kin)
{
    struct words words = {""};
    struct out out = {words.text, sizeof words.text, 0};
    for (unsigned i = 0; i < f->listed && out.length + 12 < sizeof words.text; i++)
        if (f->processes[i].kin == kin)
            out_print(&out, "%s%u", out.length ? " " : "", f->processes[i].pid);
    return words;
}

#define PIDS(f, kin) pid_words(f, kin).text

/* Whose groups are CUDA graphs and MemPools, and are called private pools. */
static bool is_pytorchs(const struct facts *f)
{
    return strcmp(f->user, "PyTorch") == 0;
}

/* ---------------------------------------------------------------------------------------------------------------- what follows from what */

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void derive_pool(struct facts *f)
{
    f->cached = less(f->reserved + f->asleep, f->allocated);
    f->between = less(f->cached, f->harvestable + f->waiting + f->frozen + f->immovable);
    f->whole = smaller(f->whole, f->between);
    f->idle = smaller(f->idle, f->frozen);
    f->lacking = f->short_by = f->available = 0;
    if (f->left == FACTS_UNKNOWN)
        return;
    uint64_t room = f->limit ? smaller(f->left, less(f->limit, f->reserved)) : f->left;
    f->available = room + f->cached;
    f->lacking = less(f->bytes, f->available);
    f->short_by = less(f->bytes, room + smaller(f->harvestable, f->cached));
}

static void derive_processes(struct facts *f)
{
    uint64_t by_kin[] = {[KIN_STRANGER] = f->more_bytes, [KIN_CHILD] = 0, [KIN_LEFT] = 0};
    for (unsigned i = 0; i < f->listed; i++)
        by_kin[f->processes[i].kin] += f->processes[i].bytes == FACTS_UNKNOWN ? 0 : f->processes[i].bytes;
    f->strangers = by_kin[KIN_STRANGER];
    f->children = by_kin[KIN_CHILD];
    f->left_behind = by_kin[KIN_LEFT];
    f->others = f->strangers + f->children + f->left_behind;
}

/*
 * The driver counts a context to its process and does not say how large it is. What was in use before our first page, less what others have
 * now, is an upper bound; so is what the process has beside our pages. Others that came since spoil the first: then it is not told apart.
 */
static void derive_overhead(struct facts *f)
{
    f->ours = f->reserved + f->elsewhere;
    f->overhead = f->own == FACTS_UNKNOWN ? 0 : less(f->own, f->ours);
    f->context = f->beside = FACTS_UNKNOWN;
    if (f->own != FACTS_UNKNOWN && f->before != FACTS_UNKNOWN && f->before >= f->others) {
        f->context = smaller(f->before - f->others, f->overhead);
        f->beside = f->overhead - f->context;
    }
}

void facts_derive(struct facts *f)
{
    derive_pool(f);
    derive_processes(f);
    derive_overhead(f);
    if (f->are_strangers) /* this process is one of them */
        f->others = f->strangers = 0;
    f->used = f->left == FACTS_UNKNOWN ? FACTS_UNKNOWN : less(f->capacity, f->left);
    f->unexplained = f->used == FACTS_UNKNOWN ? 0 : less(f->used, f->ours + f->overhead + f->others);
}

/* ---------------------------------------------------------------------------------------------------------------------------- the advice */

static bool critical(const struct facts *f, uint64_t part)
{
    return f->bytes && part && f->left != FACTS_UNKNOWN && !f->lacking && less(f->available, part) < f->bytes;
}

/* The device has what is asked for, and the limit forbids it. */
static bool limit_is_it(const struct facts *f)
{
    return f->limit && f->short_by && f->bytes <= f->left + (f->lacking ? f->cached : f->harvestable);
}

static bool helps(const struct facts *f, uint64_t part)
{
    return part && !limit_is_it(f) && ((f->lacking && part >= f->lacking) || (part >= f->capacity / 10 && (f->short_by || !f->bytes)));
}

/* It would not fit either if no other process were on the device. */
static bool alone_too_much(const struct facts *f)
{
    uint64_t others = f->others + f->unexplained + (f->beside == FACTS_UNKNOWN ? 0 : f->beside);
    return f->lacking > others;
}

/* In percent: what is asked for is taken to grow with the batch as well. */
static unsigned batch_that_fits(const struct facts *f)
{
    return (unsigned)(100 * (double)(f->activations + f->bytes - f->lacking) / (double)(f->activations + f->bytes));
}

static bool fits(const struct facts *f, enum advice advice)
{
    switch (advice) {
#define ADVICE(name, condition, ...) case ADVICE_##name: return (condition);
#include "stats/text/advice.def"
#undef ADVICE
    default: return false;
    }
}

static void print_advice(struct out *out, const struct facts *f, enum advice advice)
{
    switch (advice) {
#define ADVICE(name, condition, ...) case ADVICE_##name: out_print(out, __VA_ARGS__); break;
#include "stats/text/advice.def"
#undef ADVICE
    default: break;
    }
}

const char *advice_name(enum advice advice)
{
    static const char *const names[] = {
#define ADVICE(name, condition, ...) #name,
#include "stats/text/advice.def"
#undef ADVICE
    };
    return names[advice];
}

/* After these nothing else is worth saying; before some others the general ones are not. Of what is cached a part may be had beside the limit. */
static bool is_last_word(const struct facts *f, enum advice advice)
{
    return advice == ADVICE_NONSENSE || advice == ADVICE_TOO_LARGE || (advice == ADVICE_LIMIT && f->lacking) || advice == ADVICE_BATCH_BY;
}

int advice_choose(const struct facts *f, enum advice *chosen, int most)
{
    int count = 0;
    for (enum advice advice = 0; advice < ADVICES && count < most; advice++) {
        if (!fits(f, advice) || (count && advice >= ADVICE_REFUSED))
            continue;
        chosen[count++] = advice;
        if (is_last_word(f, advice))
            break;
    }
    return count;
}

/* ------------------------------------------------------------------------------------------------------------------------------ the text */

static void print_request(struct out *out, const struct facts *f)
{
    if (f->bytes >> 60)
        out_print(out, "CUDA out of memory. Tried to allocate more than 1EB memory. ");
    else if (f->bytes)
        out_print(out, "CUDA out of memory. Tried to allocate %s. ", SIZE(f->bytes));
    out_print(out, "GPU %d has a total capacity of %s", f->device, SIZE(f->capacity));
    if (f->left != FACTS_UNKNOWN)
        out_print(out, " of which %s is free", SIZE(f->left));
    out_print(out, ". ");
}

static void print_users(struct out *out, const struct facts *f)
{
    if (f->own != FACTS_UNKNOWN)
        out_print(out, "Including non-%s memory, this process has %s memory in use. ", f->user, SIZE(f->own));
    for (unsigned i = 0; i < f->listed; i++)
        if (f->processes[i].bytes != FACTS_UNKNOWN)
            out_print(out, "Process %u has %s memory in use. ", f->processes[i].pid, SIZE(f->processes[i].bytes));
}

static void print_pool(struct out *out, const struct facts *f)
{
    if (f->limit)
        out_print(out, "%s allowed; ", SIZE(f->limit));
    out_print(out, "Of the allocated memory %s is allocated by %s, ", SIZE(f->allocated), f->user);
    if (f->in_groups)
        out_print(out, "with %s allocated in %s, ", SIZE(f->in_groups), is_pytorchs(f) ? "private pools (e.g., CUDA Graphs)" : "groups");
    out_print(out, "and %s is reserved by %s but unallocated.", SIZE(f->cached), f->user);
}

static void print_all_advice(struct out *out, const struct facts *f)
{
    enum advice chosen[ADVICE_MAX];
    int count = advice_choose(f, chosen, ADVICE_MAX);
    for (int i = 0; i < count; i++) {
        out_print(out, "\n%s ", i ? "    or:" : "Advice:");
        print_advice(out, f, chosen[i]);
    }
}

/* A line of the table. */
static void print_line(struct out *out, uint64_t bytes, const char *what)
{
    out_print(out, "\n%14s  %s", SIZE(bytes), what);
}

static void print_our_pages(struct out *out, const struct facts *f)
{
    print_line(out, f->reserved, "pages of cenote: ");
    out_print(out, "%s in %llu %s", SIZE(f->allocated), (unsigned long long)f->blocks, f->blocks == 1 ? "block" : "blocks");
    const struct {
        uint64_t    bytes;
        const char *what;
    } parts[] = {{f->harvestable, "free for any stream"}, {f->waiting, "waiting for streams"},
                 {f->frozen, is_pytorchs(f) ? "frozen (graphs, private pools, pins)" : "frozen (private groups, graphs, pins)"},
                 {f->immovable, "in segments that cannot move"}, {f->between, "between blocks"}};
    if (f->asleep)
        out_print(out, " (%s asleep)", SIZE(f->asleep));
    if (f->cached)
        out_print(out, ", %s cached:", SIZE(f->cached));
    const char *comma = f->cached ? " " : ", ";
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].bytes)
            out_print(out, "%s%s %s", comma, SIZE(parts[i].bytes), parts[i].what);
        comma = parts[i].bytes ? ", " : comma;
    }
    if (f->pools) {
        print_line(out, f->elsewhere, "");
        out_print(out, "%llu other %s of this process", (unsigned long long)f->pools, f->pools == 1 ? "pool" : "pools");
    }
}

static void print_process(struct out *out, const struct facts *f, const struct facts_process *p)
{
    out_print(out, "\n%14s  %sprocess %u", p->bytes == FACTS_UNKNOWN ? "not known" : SIZE(p->bytes), f->are_strangers ? "of the list: " : "", p->pid);
    if (p->command[0])
        out_print(out, " (%s)", p->command);
    if (p->kin != KIN_STRANGER)
        out_print(out, p->kin == KIN_CHILD ? ", started by this one" : ": memory not freed after exit, its run has ended");
    if (p->is_gone)
        out_print(out, ", which has ended: the driver has not let go yet");
    if (p->is_others)
        out_print(out, ", of another user");
}

static void print_others(struct out *out, const struct facts *f)
{
    for (unsigned i = 0; i < f->listed && !f->are_strangers; i++)
        print_process(out, f, &f->processes[i]);
    if (f->more) {
        print_line(out, f->more_bytes, "");
        out_print(out, "%u more %s", f->more, f->more == 1 ? "process" : "processes");
    }
}

static void print_overhead(struct out *out, const struct facts *f)
{
    if (f->own == FACTS_UNKNOWN)
        return;
    if (f->context == FACTS_UNKNOWN) {
        print_line(out, f->overhead, "context of this process and what it took past cenote, not told apart");
    } else {
        print_line(out, f->context, "CUDA context of this process (estimated)");
        print_line(out, f->beside, "taken past cenote in this process: other allocators, kernels loaded since");
    }
}

/* What is not known is a line too, and says why. */
static void print_unexplained(struct out *out, const struct facts *f)
{
    const char *why = f->are_strangers ? "not told apart: contexts, other allocators, other processes. NVML lists processes by ids of another "
                                         "namespace (container)" :
                      f->unlisted ? "not told apart: contexts, other allocators, other processes. NVML does not tell: " :
                      f->own == FACTS_UNKNOWN ? "unexplained: this process is not in NVML's list" : "unexplained";
    print_line(out, f->unexplained, why);
    if (f->unlisted)
        out_print(out, "%s", f->unlisted);
    if ((f->unlisted || f->are_strangers) && f->before != FACTS_UNKNOWN)
        out_print(out, "; %s was in use before cenote took anything", SIZE(f->before));
    for (unsigned i = 0; i < f->listed && f->are_strangers; i++)
        print_process(out, f, &f->processes[i]);
}

static void print_table(struct out *out, const struct facts *f)
{
    out_print(out, "\nIn use on GPU %d, as nvidia-smi counts: %s", f->device,
              f->gap == FACTS_LOST ? "the context is lost, the driver does not tell" :
              f->gap == FACTS_EXITING ? "the process is exiting, the driver is not asked any more" :
              f->used == FACTS_UNKNOWN ? "the driver does not tell" : SIZE(f->used));
    print_our_pages(out, f);
    print_overhead(out, f);
    print_others(out, f);
    if (f->used != FACTS_UNKNOWN)
        print_unexplained(out, f);
}

static void print_empty(struct out *out, const struct facts *f)
{
    if (!f->empty)
        return;
    const char *comma = "";
    out_print(out, "\nOther GPUs of which nearly nothing is in use:");
    for (int device = 0; device < 64; device++)
        if (f->empty >> device & 1) {
            out_print(out, "%s %d", comma, device);
            comma = ",";
        }
}

size_t explain_print(const struct facts *f, char *text, size_t size)
{
    struct out out = {text, size, 0};
    print_request(&out, f);
    print_users(&out, f);
    print_pool(&out, f);
    print_all_advice(&out, f);
    print_empty(&out, f);
    print_table(&out, f);
    return out.length;
}
