/*
 * test_explain.c: each piece of advice in a state that calls for it and in one that nearly does, made up as facts; and the text in states that
 * are hard to bring about: all known, nothing known, as long as it can be.
 */
#include "stats/text/facts.h"
#include "tests/harness.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)

/* A card of 16 GiB with a context of 512 MiB, 10 GiB live, none cached, 5.5 GiB free. No other process is there. */
static struct facts calm(void)
{
    return (struct facts){.user = "cenote", .capacity = 16 * GIB, .left = 5 * GIB + 512 * MIB, .before = 512 * MIB, .moves = true, .page = 2 * MIB,
                          .reserved = 10 * GIB, .allocated = 10 * GIB, .blocks = 100, .own = 10 * GIB + 512 * MIB,
                          .moment = {.keeps_history = -1}};
}

static void add_process(struct facts *f, enum facts_kin kin, uint64_t bytes)
{
    struct facts_process *p = &f->processes[f->listed++];
    *p = (struct facts_process){.pid = 4710 + f->listed, .kin = kin, .bytes = bytes, .command = "python train.py"};
    f->left -= bytes;
}

/* It is live instead of free. */
static void fill(struct facts *f, uint64_t bytes)
{
    f->reserved += bytes;
    f->allocated += bytes;
    f->own += bytes;
    f->left -= bytes;
}

/* It is cached instead of free. */
static void cache(struct facts *f, uint64_t bytes, uint64_t *part)
{
    f->reserved += bytes;
    f->own += bytes;
    f->left -= bytes;
    if (part)
        *part += bytes;
}

/* 4 GiB are cached, 1.5 GiB are free, and 3 GiB are wanted: it would fit if the 4 GiB could be had. */
static struct facts cached_as(size_t part)
{
    struct facts f = calm();
    f.bytes = 3 * GIB;
    cache(&f, 4 * GIB, part ? (uint64_t *)(void *)((char *)&f + part) : NULL);
    return f;
}

static bool advises(struct facts f, enum advice advice)
{
    enum advice chosen[2];
    facts_derive(&f);
    int count = advice_choose(&f, chosen, 2);
    bool found = (count > 0 && chosen[0] == advice) || (count > 1 && chosen[1] == advice);
    if (!found)
        printf("  %s is not among: %s %s\n", advice_name(advice), count > 0 ? advice_name(chosen[0]) : "-", count > 1 ? advice_name(chosen[1]) : "");
    return found;
}

static bool advises_not(struct facts f, enum advice advice)
{
    enum advice chosen[ADVICES];
    facts_derive(&f);
    for (int i = advice_choose(&f, chosen, ADVICES); i-- > 0;)
        if (chosen[i] == advice)
            return false;
    return true;
}

#define YES(name) EXPECT(advises(f, ADVICE_##name))
#define NO(name)  EXPECT(advises_not(f, ADVICE_##name))

CASE(one_request_larger_than_the_card)
{
    struct facts f = calm();
    f.bytes = 16 * GIB + 1;
    YES(TOO_LARGE);
    NO(NONSENSE);
    f.bytes = 16 * GIB; /* the card has no more, but that much it has */
    NO(TOO_LARGE);
    YES(BATCH);
    f.bytes = 1ull << 50;
    YES(NONSENSE);
    NO(TOO_LARGE);
    f.bytes = (1ull << 50) - 1;
    NO(NONSENSE);
}

CASE(limit_set_too_low)
{
    struct facts f = calm();
    f.bytes = 2 * GIB;
    f.limit = 11 * GIB;
    YES(LIMIT);
    f.limit = 12 * GIB;
    NO(LIMIT);
    f.limit = 11 * GIB;
    add_process(&f, KIN_STRANGER, 4 * GIB); /* without the limit it would not fit either */
    NO(LIMIT);
    YES(FOREIGN);
    f = cached_as(0); /* what is cached would be enough, and cannot be had: the limit forbids the rest */
    f.limit = 14 * GIB;
    f.left += 4 * GIB;
    YES(LIMIT);
    YES(BETWEEN);
    add_process(&f, KIN_STRANGER, 2 * GIB); /* that it holds much is no reason */
    NO(FOREIGN);
}

CASE(memory_left_behind)
{
    struct facts f = calm();
    f.bytes = 3 * GIB;
    add_process(&f, KIN_LEFT, 4 * GIB);
    YES(LEFT_BEHIND);
    NO(FOREIGN);
    f.processes[0].kin = KIN_STRANGER;
    NO(LEFT_BEHIND);
    f = calm();
    f.bytes = 6 * GIB;
    add_process(&f, KIN_LEFT, 300 * MIB); /* a context: it would not be enough */
    NO(LEFT_BEHIND);
}

CASE(foreign_process)
{
    struct facts f = calm();
    f.bytes = 3 * GIB;
    add_process(&f, KIN_STRANGER, 4 * GIB);
    YES(FOREIGN);
    NO(BATCH);
    f = calm();
    f.bytes = 7 * GIB;
    add_process(&f, KIN_STRANGER, 400 * MIB);
    NO(FOREIGN);
    YES(BATCH);
    f.bytes = 0; /* nothing failed, and it has little */
    NO(FOREIGN);
}

/* A full device: what is cached would be enough, and lies between blocks. That another process holds much comes before smaller pages. */
CASE(foreign_process_beside_memory_between_blocks)
{
    struct facts f = cached_as(0);
    char text[4096];
    f.capacity += 8 * GIB;
    f.left += 8 * GIB;
    add_process(&f, KIN_STRANGER, 8 * GIB);
    facts_derive(&f);
    EXPECT_EQ(f.short_by, GIB + 512 * MIB);
    explain_print(&f, text, sizeof text);
    EXPECT(strstr(text, "Advice: Other processes (4711) hold 8.00 GiB, which leaves 16.00 GiB for this one. ") && advises(f, ADVICE_BETWEEN));
    f.harvestable = 2 * GIB; /* any stream may have it: the driver refuses for a reason of its own */
    NO(FOREIGN);
}

CASE(children)
{
    struct facts f = calm();
    f.bytes = 3 * GIB;
    add_process(&f, KIN_CHILD, 2 * GIB);
    add_process(&f, KIN_CHILD, 2 * GIB);
    YES(CHILDREN);
    NO(FOREIGN);
    f.processes[0].kin = f.processes[1].kin = KIN_STRANGER;
    NO(CHILDREN);
}

CASE(history_that_accumulates)
{
    struct facts f = calm();
    f.bytes = 6 * GIB;
    f.steps = 100;
    f.growing = FACTS_STEPS;
    f.grown = 200 * MIB;
    YES(HISTORY);
    f.growing = FACTS_STEPS - 1; /* an optimizer's state comes, and then it is level */
    NO(HISTORY);
    f.growing = 20;
    f.grown = 100 * MIB; /* not a hundredth of the card */
    NO(HISTORY);
    f.grown = 200 * MIB;
    f.bytes = 0; /* also before anything failed */
    YES(HISTORY);
}

CASE(gradients_kept_in_evaluation)
{
    struct facts f = calm();
    f.bytes = 6 * GIB;
    f.moment.phase = CENOTE_PHASE_EVALUATION;
    f.moment.keeps_history = 1;
    YES(HISTORY_IN_EVALUATION);
    f.moment.keeps_history = 0;
    NO(HISTORY_IN_EVALUATION);
    f.moment.keeps_history = -1; /* not known */
    NO(HISTORY_IN_EVALUATION);
    f.moment.gradients = 2 * GIB;
    YES(GRADIENTS_IN_EVALUATION);
    f.moment.gradients = 100 * MIB;
    NO(GRADIENTS_IN_EVALUATION);
    f.moment.gradients = 2 * GIB;
    f.moment.phase = CENOTE_PHASE_FORWARD;
    NO(GRADIENTS_IN_EVALUATION);
    f.moment.keeps_history = 1;
    NO(HISTORY_IN_EVALUATION);
}

CASE(evaluation_batch_larger_than_trainings)
{
    struct facts f = calm();
    f.bytes = 6 * GIB;
    f.moment.phase = CENOTE_PHASE_EVALUATION;
    f.moment.keeps_history = 0;
    f.moment.training_peak = 15 * GIB;
    YES(EVALUATION_BATCH);
    f.moment.training_peak = 16 * GIB; /* training had as much */
    NO(EVALUATION_BATCH);
    f.moment.training_peak = 0;
    NO(EVALUATION_BATCH);
    f.moment.training_peak = 15 * GIB;
    f.moment.keeps_history = 1; /* that is the reason */
    NO(EVALUATION_BATCH);
    f.moment.keeps_history = 0;
    f.moment.phase = CENOTE_PHASE_FORWARD;
    NO(EVALUATION_BATCH);
}

CASE(batch_too_large)
{
    struct facts f = calm();
    f.bytes = 6 * GIB;
    YES(BATCH);
    NO(BATCH_BY);
    f.activations = 8 * GIB;
    YES(BATCH_BY);
    NO(BATCH);
    f.bytes = 5 * GIB; /* it would fit: something else is wrong */
    NO(BATCH_BY);
    NO(BATCH);
    f.bytes = 20 * GIB; /* no batch is small enough: what is live beside it is too much already */
    f.capacity = 24 * GIB;
    f.activations = GIB;
    f.left = 1 * GIB;
    f.bytes = 8 * GIB;
    add_process(&f, KIN_STRANGER, 512 * MIB);
    f.processes[0].bytes = 12 * GIB; /* without the others it would fit */
    NO(BATCH_BY);
    NO(BATCH);
}

CASE(by_how_much_the_batch_is_too_large)
{
    struct facts f = calm();
    char text[4096];
    f.bytes = 6 * GIB;
    f.activations = 4 * GIB; /* 10 GiB grow with the batch, and 512 MiB lack: 95 % would fit */
    facts_derive(&f);
    EXPECT_EQ(f.lacking, 512 * MIB);
    explain_print(&f, text, sizeof text);
    EXPECT(strstr(text, "It is 512.00 MiB too much for this GPU") != NULL);
    EXPECT(strstr(text, "at most 95 % of this batch") != NULL);
}

CASE(first_step_of_an_optimizer)
{
    struct facts f = calm();
    f.bytes = 6 * GIB;
    f.moment.phase = CENOTE_PHASE_OPTIMIZER;
    YES(OPTIMIZER);
    f.steps = 1;
    NO(OPTIMIZER);
    f.steps = 0;
    f.moment.phase = CENOTE_PHASE_BACKWARD;
    NO(OPTIMIZER);
}

CASE(fragmentation_memory_that_waits_for_streams)
{
    struct facts f = cached_as(offsetof(struct facts, waiting));
    YES(STREAMS);
    NO(CAPTURE);
    f.is_unannounced = true;
    YES(UNANNOUNCED);
    NO(STREAMS);
    f.capturing = true;
    YES(CAPTURE);
    NO(STREAMS);
    NO(UNANNOUNCED);
    f.bytes = GIB; /* what is free would do */
    NO(CAPTURE);
    f.bytes = 8 * GIB; /* it would not fit even so */
    NO(CAPTURE);
}

CASE(fragmentation_frozen_memory)
{
    struct facts f = cached_as(offsetof(struct facts, frozen));
    YES(FROZEN);
    NO(IDLE_POOLS);
    f.bytes = GIB;
    NO(FROZEN);
    f = cached_as(offsetof(struct facts, harvestable));
    NO(FROZEN);
}

CASE(fragmentation_segments_that_cannot_move)
{
    struct facts f = cached_as(offsetof(struct facts, immovable));
    YES(IMMOVABLE);
    f.bytes = 8 * GIB;
    NO(IMMOVABLE);
    f = cached_as(offsetof(struct facts, waiting));
    NO(IMMOVABLE);
}

CASE(fragmentation_whole_groups)
{
    struct facts f = cached_as(offsetof(struct facts, whole));
    YES(WHOLE);
    NO(BETWEEN);
    f.whole = 0;
    NO(WHOLE);
    YES(BETWEEN);
}

CASE(fragmentation_between_blocks)
{
    struct facts f = cached_as(0);
    char text[4096];
    YES(BETWEEN);
    f.page = 8 * MIB;
    facts_derive(&f);
    explain_print(&f, text, sizeof text);
    EXPECT(strstr(text, "page_mib:2") != NULL);
    f.page = 2 * MIB; /* they cannot be smaller */
    explain_print(&f, text, sizeof text);
    EXPECT(strstr(text, "page_mib:2") == NULL);
    f.bytes = GIB;
    NO(BETWEEN);
}

CASE(leaked_graphs_and_pools)
{
    struct facts f = cached_as(offsetof(struct facts, frozen));
    f.private_pools = 3;
    f.idle_pools = 2;
    f.idle = 3 * GIB;
    YES(IDLE_POOLS);
    f.bytes = 2 * GIB; /* it would do without them */
    NO(IDLE_POOLS);
    f.bytes = 6 * GIB; /* it would not do with them */
    NO(IDLE_POOLS);
    f.bytes = 0; /* nothing failed, but it is much */
    YES(IDLE_POOLS);
    f.idle = GIB;
    NO(IDLE_POOLS);
    f = calm();
    f.bytes = 6 * GIB; /* not cached at all, live: this is no leak */
    f.private_pools = 3;
    NO(IDLE_POOLS);
}

CASE(another_allocator_in_the_process)
{
    struct facts f = calm();
    f.bytes = 5 * GIB;
    f.own += 2 * GIB;
    f.left -= 2 * GIB;
    YES(BESIDE);
    f.before = FACTS_UNKNOWN; /* a context of that size? not known */
    NO(BESIDE);
    f = calm();
    f.bytes = 7 * GIB;
    f.own += 200 * MIB;
    f.left -= 200 * MIB;
    NO(BESIDE);
    f.bytes = f.left + f.cached + 100 * MIB; /* it would do, but the program cannot give up the handles of a library */
    NO(BESIDE);
}

CASE(memory_that_nobody_is_known_to_hold)
{
    struct facts f = calm();
    f.bytes = 5 * GIB;
    f.left -= 3 * GIB;
    YES(UNEXPLAINED);
    f.left += 2 * GIB + 900 * MIB;
    f.bytes = 7 * GIB;
    NO(UNEXPLAINED);
}

CASE(other_devices_are_empty)
{
    struct facts f = calm();
    char text[4096];
    f.bytes = 6 * GIB;
    f.empty = 0xe;
    YES(EMPTY_DEVICES);
    facts_derive(&f);
    explain_print(&f, text, sizeof text);
    EXPECT(strstr(text, "Other GPUs of which nearly nothing is in use: 1, 2, 3") != NULL);
    f.empty = 0;
    NO(EMPTY_DEVICES);
    facts_derive(&f);
    explain_print(&f, text, sizeof text);
    EXPECT(strstr(text, "Other GPUs") == NULL);
}

/* No part of what is cached is to blame alone. */
CASE(cached_in_several_ways)
{
    struct facts f = calm();
    f.bytes = 3 * GIB;
    cache(&f, GIB + 512 * MIB, &f.waiting);
    cache(&f, GIB + 512 * MIB, &f.frozen);
    YES(CACHED);
    f.bytes = 6 * GIB;
    NO(CACHED);
}

CASE(enough_by_now)
{
    struct facts f = calm();
    f.bytes = GIB;
    YES(REFUSED);
    f.left = GIB - 1;
    f.capacity = 11 * GIB + 512 * MIB - 1;
    NO(REFUSED);
}

CASE(nothing_is_wrong)
{
    struct facts f = calm();
    enum advice chosen[2];
    facts_derive(&f);
    EXPECT_EQ(advice_choose(&f, chosen, 2), 0);
    f.left = FACTS_UNKNOWN; /* a lost context: nothing is claimed that depends on it */
    f.bytes = GIB;
    facts_derive(&f);
    EXPECT_EQ(advice_choose(&f, chosen, 2), 1);
    EXPECT_EQ(chosen[0], ADVICE_FEWER);
}

/* --- the table */

/* The figures of the lines of the table add up to what the driver counts as used. */
CASE(the_table_adds_up)
{
    struct facts f = calm();
    cache(&f, GIB, &f.waiting);
    f.own += 256 * MIB;
    f.left -= 256 * MIB;
    f.pools = 1;
    f.elsewhere = 128 * MIB;
    f.own += 128 * MIB;
    f.left -= 128 * MIB;
    add_process(&f, KIN_STRANGER, GIB);
    f.left -= 64 * MIB;
    f.before = GIB + 512 * MIB; /* the other was there first */
    facts_derive(&f);
    EXPECT_EQ(f.used, f.reserved + f.elsewhere + f.context + f.beside + f.others + f.unexplained);
    EXPECT_EQ(f.context, 512 * MIB);
    EXPECT_EQ(f.beside, 256 * MIB);
    EXPECT_EQ(f.unexplained, 64 * MIB);
}

/* Another process came after our first pool: then what was in use before says nothing of our context. */
CASE(a_context_that_cannot_be_told_apart)
{
    struct facts f = calm();
    char text[4096];
    add_process(&f, KIN_STRANGER, GIB);
    facts_derive(&f);
    EXPECT_EQ(f.context, FACTS_UNKNOWN);
    EXPECT_EQ(f.overhead, 512 * MIB);
    explain_print(&f, text, sizeof text);
    EXPECT(strstr(text, "not told apart") != NULL);
}

/* Every figure NVML gives may be missing. Nothing is made up instead. */
CASE(a_container_whose_ids_mean_nothing_here)
{
    struct facts f = calm();
    char text[4096];
    f.bytes = 6 * GIB;
    f.own = FACTS_UNKNOWN;
    f.are_strangers = true;
    add_process(&f, KIN_STRANGER, 3 * GIB);
    f.processes[0].command = "";
    NO(FOREIGN);
    facts_derive(&f);
    explain_print(&f, text, sizeof text);
    EXPECT(strstr(text, "ids of another namespace") != NULL);
    EXPECT(strstr(text, "this process has") == NULL);
    EXPECT(strstr(text, "kill") == NULL);
}

CASE(no_management_library)
{
    struct facts f = calm();
    char text[4096];
    f.own = FACTS_UNKNOWN;
    f.unlisted = "libnvidia-ml.so.1 is not there";
    facts_derive(&f);
    EXPECT_EQ(f.unexplained, 512 * MIB);
    explain_print(&f, text, sizeof text);
    EXPECT(strstr(text, "512.00 MiB  not told apart: contexts, other allocators, other processes. NVML does not tell: libnvidia-ml.so.1 is not "
                        "there; 512.00 MiB was in use before") != NULL);
}

/* PyTorch's words, in its order: tools look for them. */
CASE(words_that_tools_look_for)
{
    static const char *const order[] = {
        "CUDA out of memory. ", "Tried to allocate 6.00 GiB. ", "GPU 3 has a total capacity of 16.00 GiB of which ", " is free. ",
        "Including non-PyTorch memory, this process has ", " memory in use. ", "Process 4711 has ", "15.00 GiB allowed; ",
        "Of the allocated memory 10.00 GiB is allocated by PyTorch, ", "with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), ",
        "and 1.00 GiB is reserved by PyTorch but unallocated."};
    struct facts f = calm();
    char text[4096];
    f.user = "PyTorch";
    f.device = 3;
    f.bytes = 6 * GIB;
    f.limit = 15 * GIB;
    f.in_groups = GIB;
    cache(&f, GIB, &f.waiting);
    add_process(&f, KIN_STRANGER, 400 * MIB);
    facts_derive(&f);
    explain_print(&f, text, sizeof text);
    const char *at = text;
    for (size_t i = 0; i < sizeof order / sizeof *order && at; i++) {
        const char *found = strstr(at, order[i]);
        if (!found)
            printf("  \"%s\" does not follow in: %s\n", order[i], text);
        EXPECT(found != NULL);
        at = found;
    }
}

/* As long as it can be: the header promises that 4096 bytes are enough, and the sheets of error.c have no more. */
CASE(the_longest_text_fits)
{
    char text[8192], command[64];
    size_t longest = 0;
    memset(command, 'x', sizeof command);
    command[63] = 0;
    for (enum advice first = 0; first < ADVICES; first++) {
        struct facts f = calm();
        f.user = "a-name-of-31-letters-----------";
        f.device = 63;
        f.empty = UINT64_MAX;
        f.bytes = 1023 * GIB;
        f.limit = f.capacity = 1023 * GIB + 1023 * MIB;
        f.left = 1023 * MIB;
        f.before = 999 * GIB;
        f.harvestable = f.waiting = f.frozen = f.immovable = 1023 * MIB;
        f.reserved = 1000 * GIB;
        f.allocated = f.in_groups = 900 * GIB;
        f.blocks = UINT64_MAX;
        f.idle = 1023 * MIB;
        f.idle_pools = UINT32_MAX;
        f.pools = UINT32_MAX;
        f.grown = f.growing = UINT64_MAX / 2;
        f.moment = (cenote_moment){.phase = CENOTE_PHASE_EVALUATION, .gradients = 1000 * GIB, .training_peak = 1, .keeps_history = first % 2};
        f.more = UINT32_MAX;
        f.more_bytes = 1023 * MIB;
        for (int i = 0; i < FACTS_PROCESSES; i++) {
            f.processes[i] = (struct facts_process){.pid = 4294967290u, .kin = first % 3, .bytes = 1023 * MIB, .command = command, .is_others = true};
            f.listed++;
        }
        facts_derive(&f);
        size_t length = explain_print(&f, text, sizeof text);
        longest = length > longest ? length : longest;
    }
    printf("  the longest has %zu bytes\n", longest);
    EXPECT(longest > 2000 && longest < 4096);
}

CASE(a_short_buffer_holds_the_beginning)
{
    struct facts f = calm();
    char whole[4096], part[100];
    f.bytes = 6 * GIB;
    facts_derive(&f);
    size_t length = explain_print(&f, whole, sizeof whole);
    EXPECT_EQ(length, strlen(whole));
    EXPECT_EQ(explain_print(&f, part, sizeof part), length);
    EXPECT_EQ(strlen(part), sizeof part - 1);
    EXPECT(!strncmp(part, whole, sizeof part - 1));
    EXPECT_EQ(explain_print(&f, NULL, 0), length);
    fill(&f, GIB);
}

SUITE_MAIN("stats: explanations")
