/*
 * test_lend.c: memory that a process lends goes to another that is short of it, and comes back with its contents. Two processes on one simulated card
 * that has room for four units. Not: PyTorch (tests/torch/only_cenote/).
 */
#include <pthread.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "share/lend.h"
#include "share/letters.h"
#include "tests/api/pair.h"

#include <cenote/sleep.h>

#define UNIT (16 * MIB)

static void open_lenders(struct pair *p)
{
    struct sim_shape shape = shared_card();
    cenote_options options = scene_options();
    shape.capacity = 4 * UNIT;
    snprintf(shape_text, sizeof shape_text, "capacity:64MiB,context_bytes:0,machine:%s", shape.machine);
    scene_open_with(&p->scene, &shape, &options);
    other_start(&p->other, shape_text, CENOTE_VMM);
}

static int ask_other(struct other *other, struct order o, struct order *answer)
{
    int error = other_order(other, &o);
    if (answer)
        *answer = o;
    return error;
}

static uint64_t other_own(struct other *other, uint64_t bytes, uint64_t pattern)
{
    struct order o;
    EXPECT_EQ(ask_other(other, (struct order){.op = OWN, .bytes = bytes, .pattern = pattern}, &o), 0);
    return o.at;
}

static uint64_t other_asleep(struct other *other)
{
    struct order o;
    EXPECT_EQ(ask_other(other, (struct order){.op = SLEEPING}, &o), 0);
    return o.bytes;
}

CASE(what_is_lent_is_another_s_and_comes_back_whole)
{
    struct pair p;
    struct held mine;
    struct order o;
    void *block;
    open_lenders(&p);
    uint64_t theirs = other_own(&p.other, 3 * UNIT, 7);
    EXPECT_EQ(cenote_alloc(p.scene.pool, 2 * UNIT, p.scene.stream[A], &block), CENOTE_OUT_OF_MEMORY); /* nobody lends */
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = LEND}, NULL), 0);
    EXPECT_EQ(other_asleep(&p.other), 0); /* nobody has asked */
    REQUIRE(held_take(&mine, p.scene.pool, 2 * UNIT, p.scene.stream[A]));
    EXPECT(other_asleep(&p.other) >= 3 * UNIT);

    EXPECT_EQ(ask_other(&p.other, (struct order){.op = LOAN_END}, NULL), CENOTE_OUT_OF_MEMORY); /* it is used, and not lent */
    EXPECT(other_asleep(&p.other) >= 3 * UNIT);
    DONE(cenote_free(mine.at));
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = LOAN_END}, &o), 0);
    EXPECT(o.bytes >= 3 * UNIT);
    EXPECT_EQ(other_differ(&p.other, theirs, 7, 3 * UNIT), 0);
    EXPECT_EQ(cenote_alloc(p.scene.pool, 2 * UNIT, p.scene.stream[A], &block), CENOTE_OUT_OF_MEMORY); /* the loan has ended */
    DONE(other_give(&p.other, theirs));
    close_pair(&p);
}

/* A loan that ends asks in turn: both processes live on a card that holds one of them. */
CASE(two_that_lend_take_turns)
{
    struct pair p;
    struct held mine;
    cenote_loan *loan;
    cenote_sleep back;
    open_lenders(&p);
    uint64_t theirs = other_own(&p.other, 3 * UNIT, 7);
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = LEND}, NULL), 0);
    REQUIRE(held_take(&mine, p.scene.pool, 3 * UNIT, p.scene.stream[A]));
    for (int round = 0; round < 5; round++) {
        DONE(cenote_pool_lend(p.scene.pool, NULL, &loan));
        EXPECT_EQ(ask_other(&p.other, (struct order){.op = LOAN_END}, NULL), 0);
        EXPECT_EQ(other_asleep(&p.other), 0);
        EXPECT(scene_stats(p.scene.pool).asleep >= 3 * UNIT);
        EXPECT_EQ(other_differ(&p.other, theirs, 7, 3 * UNIT), 0);
        EXPECT_EQ(ask_other(&p.other, (struct order){.op = LEND}, NULL), 0);
        DONE(cenote_loan_end(loan, &back));
        EXPECT(back.pages >= 3 * UNIT);
        EXPECT(other_asleep(&p.other) >= 3 * UNIT);
        held_expect(&mine, p.scene.stream[A]);
        DONE(cuCtxSynchronize());
    }
    DONE(cenote_free(mine.at));
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = LOAN_END}, NULL), 0);
    DONE(other_give(&p.other, theirs));
    close_pair(&p);
}

/* What is free in a pool that lends goes first, and if it is enough nothing sleeps. */
CASE(free_memory_goes_before_what_is_lent)
{
    struct pair p;
    struct held mine;
    open_lenders(&p);
    uint64_t kept = other_own(&p.other, UNIT, 7), freed = other_own(&p.other, 2 * UNIT, 8);
    DONE(other_give(&p.other, freed));
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = LEND, .at = kept}, NULL), 0);
    REQUIRE(held_take(&mine, p.scene.pool, 2 * UNIT, p.scene.stream[A]));
    EXPECT_EQ(other_asleep(&p.other), 0);
    DONE(cenote_free(mine.at));
    DONE(other_give(&p.other, kept));
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = LOAN_END}, NULL), 0);
    close_pair(&p);
}

CASE(only_what_is_named_sleeps)
{
    struct pair p;
    struct held mine;
    void *block;
    open_lenders(&p);
    uint64_t used = other_own(&p.other, 2 * UNIT, 7), lent = other_own(&p.other, UNIT, 8);
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = LEND, .at = lent}, NULL), 0);
    EXPECT_EQ(cenote_alloc(p.scene.pool, 3 * UNIT, p.scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(other_differ(&p.other, used, 7, 2 * UNIT), 0);
    REQUIRE(held_take(&mine, p.scene.pool, UNIT + UNIT / 2, p.scene.stream[A]));
    EXPECT_EQ(other_differ(&p.other, used, 7, 2 * UNIT), 0);
    DONE(cenote_free(mine.at));
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = LOAN_END}, NULL), 0);
    EXPECT_EQ(other_differ(&p.other, lent, 8, UNIT), 0);
    DONE(other_give(&p.other, used));
    DONE(other_give(&p.other, lent));
    close_pair(&p);
}

/* A lender that is killed is none; its memory is the card's. */
CASE(a_lender_that_dies_gives_everything)
{
    struct pair p;
    struct held mine;
    open_lenders(&p);
    other_own(&p.other, 3 * UNIT, 7);
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = LEND}, NULL), 0);
    other_kill(&p.other);
    REQUIRE(held_take(&mine, p.scene.pool, 3 * UNIT, p.scene.stream[A]));
    DONE(cenote_free(mine.at));
    scene_close(&p.scene);
}

/* One that is stopped keeps nobody from those that answer, whichever of them is asked first. */
CASE(a_lender_that_is_stopped_is_asked_last)
{
    struct pair p;
    struct held mine;
    struct other second;
    open_lenders(&p);
    other_start(&second, shape_text, CENOTE_VMM);
    struct other *const lenders[] = {&p.other, &second};
    for (int i = 0; i < 2; i++) {
        other_own(lenders[i], UNIT, 7);
        EXPECT_EQ(ask_other(lenders[i], (struct order){.op = LEND}, NULL), 0);
    }
    for (int i = 0; i < 2; i++) {
        EXPECT(!kill(lenders[i]->process, SIGSTOP));
        REQUIRE(held_take(&mine, p.scene.pool, 2 * UNIT + UNIT / 2, p.scene.stream[A]));
        EXPECT(!kill(lenders[i]->process, SIGCONT));
        held_give(&mine);
        DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
        for (int j = 0; j < 2; j++) {
            EXPECT_EQ(ask_other(lenders[j], (struct order){.op = LOAN_END}, NULL), 0);
            EXPECT_EQ(ask_other(lenders[j], (struct order){.op = LEND}, NULL), 0);
        }
    }
    other_kill(&second);
    other_kill(&p.other);
    scene_close(&p.scene);
}

static int letters_at(int ear)
{
    char letter[256];
    int count = 0;
    while (recv(ear, letter, sizeof letter, MSG_DONTWAIT) > 0)
        count++;
    return count;
}

/* A lender that never answers, as one that is stopped, is waited for once, and not at each shortage. */
CASE(a_silent_lender_holds_up_one_shortage)
{
    struct scene scene;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    void *block;
    CUdeviceptr beside;
    scene_open(&scene, 4 * UNIT);
    DONE(cuMemAlloc(&beside, 3 * UNIT)); /* not the pool's */
    uint64_t patience = wants_patience;
    wants_patience = 2000 * MSEC;
    int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "cenote-lend-%u-silent%d", (unsigned)getuid(), (int)getpid());
    int ear = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    REQUIRE(ear >= 0 && !bind(ear, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)));
    EXPECT_EQ(cenote_alloc(scene.pool, 2 * UNIT, scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    EXPECT(letters_at(ear) > 0);
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(cenote_alloc(scene.pool, 2 * UNIT, scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(letters_at(ear), 0);
    EXPECT(!close(ear));
    DONE(cuMemFree(beside));
    wants_patience = patience;
    scene_close(&scene);
}

/* A process asks a lender that is stopped, and gives up: once the lender runs again it gives that process nothing. */
CASE(who_has_given_up_gets_nothing)
{
    struct pair p;
    struct sockaddr_un lender = {.sun_family = AF_UNIX};
    struct want want = {.magic = WANT_MAGIC, .version = WANT_VERSION, .bytes = UNIT};
    const uint64_t ours = (uint64_t)getpid() << 32 | 1u << 31;
    struct answer answer = {0};
    char line[512];
    CUuuid card;
    open_lenders(&p);
    DONE(cuDeviceGetUuid(&card, 0));
    memcpy(want.card, &card, sizeof card);
    other_own(&p.other, UNIT, 7);
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = LEND}, NULL), 0);
    EXPECT(!kill(p.other.process, SIGSTOP));
    int gone = letters_socket(77), waits = letters_socket(78), sent = 0;
    FILE *file = fopen("/proc/net/unix", "re"); /* all that lend: the one on this card is p.other */
    while (file && fgets(line, sizeof line, file)) {
        char *name = strstr(line, "@cenote-lend-");
        if (!name)
            continue;
        name[strcspn(name, "\n")] = 0;
        strcpy(lender.sun_path + 1, name + 1);
        socklen_t bytes = (socklen_t)(sizeof lender.sun_family + strlen(name));
        want.number = ours | 1, want.key_back = 77, want.bytes = UNIT;
        sent += sendto(gone, &want, sizeof want, MSG_DONTWAIT, (struct sockaddr *)&lender, bytes) > 0;
        want.number = ours | 2, want.key_back = 78, want.bytes = 0;
        sent += sendto(waits, &want, sizeof want, MSG_DONTWAIT, (struct sockaddr *)&lender, bytes) > 0;
    }
    EXPECT(file && !fclose(file) && !close(gone) && sent >= 2);
    EXPECT(!kill(p.other.process, SIGCONT));
    for (int heard = 0; heard < sent / 2;) { /* each has come to the second letter, and so is behind the first */
        struct letter letter = letters_receive(waits, &answer, sizeof answer, 0);
        heard += letter.length == (ssize_t)sizeof answer && answer.number == (ours | 2);
    }
    EXPECT_EQ(other_asleep(&p.other), 0);
    EXPECT(!close(waits));
    other_kill(&p.other);
    scene_close(&p.scene);
}

/* Any process may write to the socket of a lender. */
CASE(letters_that_make_no_sense)
{
    struct pair p;
    struct held mine;
    char line[512];
    int sent = 0, s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    open_lenders(&p);
    other_own(&p.other, 3 * UNIT, 7);
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = LEND}, NULL), 0);
    FILE *file = fopen("/proc/net/unix", "re");
    while (file && fgets(line, sizeof line, file)) {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        char *name = strstr(line, "@cenote-lend-");
        if (!name)
            continue;
        name[strcspn(name, "\n")] = 0;
        strcpy(to.sun_path + 1, name + 1);
        for (size_t bytes = 0; bytes < sizeof line; bytes += 8)
            sent += sendto(s, line, bytes, MSG_DONTWAIT, (struct sockaddr *)&to, (socklen_t)(sizeof to.sun_family + strlen(name))) >= 0;
    }
    EXPECT(sent > 0);
    EXPECT(file && !fclose(file) && !close(s));
    REQUIRE(held_take(&mine, p.scene.pool, 2 * UNIT, p.scene.stream[A]));
    DONE(cenote_free(mine.at));
    other_kill(&p.other);
    scene_close(&p.scene);
}

/* A child of the lender that lives on is no lender. */
CASE(a_child_of_a_lender_answers_for_nobody)
{
    struct pair p;
    struct held mine;
    struct order o;
    open_lenders(&p);
    uint64_t theirs = other_own(&p.other, 3 * UNIT, 7);
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = LEND}, NULL), 0);
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = FORK, .at = theirs}, &o), 0);
    other_kill(&p.other);
    REQUIRE(held_take(&mine, p.scene.pool, 3 * UNIT, p.scene.stream[A]));
    DONE(cenote_free(mine.at));
    kill((pid_t)o.pattern, SIGKILL);
    scene_close(&p.scene);
}

/* During a capture nothing goes; the other process hears that there is nothing, and the capture lives. */
CASE(nothing_goes_during_a_capture)
{
    struct pair p;
    struct held mine;
    struct order o;
    cenote_loan *loan;
    CUgraph graph;
    open_lenders(&p);
    REQUIRE(held_take(&mine, p.scene.pool, 3 * UNIT, p.scene.stream[A]));
    DONE(cenote_pool_lend(p.scene.pool, NULL, &loan));
    DONE(cenote_capture_begin(p.scene.pool, NULL, p.scene.stream[B]));
    DONE(cuStreamBeginCapture(p.scene.stream[B], CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = OWN, .bytes = 2 * UNIT, .pattern = 7}, &o), CENOTE_OUT_OF_MEMORY);
    DONE(cuStreamEndCapture(p.scene.stream[B], &graph));
    DONE(cenote_capture_end(p.scene.pool, NULL, p.scene.stream[B]));
    EXPECT_EQ(scene_stats(p.scene.pool).asleep, 0);
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = OWN, .bytes = 2 * UNIT, .pattern = 7}, &o), 0);
    EXPECT(scene_stats(p.scene.pool).asleep >= 3 * UNIT);
    DONE(other_give(&p.other, o.at));
    EXPECT_EQ(ask_other(&p.other, (struct order){.op = TRIM}, NULL), 0);
    DONE(cenote_loan_end(loan, NULL));
    held_give(&mine);
    DONE(cuGraphDestroy(graph));
    close_pair(&p);
}

CASE(mistakes_are_said_and_loans_end_with_their_pool)
{
    struct pair p;
    cenote_loan *loan = NULL, *first = NULL;
    cenote_sleep wrong = {.contents = 9}, back;
    open_lenders(&p);
    EXPECT_EQ(cenote_pool_lend(p.scene.pool, &wrong, &loan), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_lend(p.scene.pool, NULL, NULL), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_lend(NULL, NULL, &loan), CENOTE_INVALID);
    EXPECT_EQ(cenote_loan_end(NULL, &back), CENOTE_INVALID);
    for (int i = 0; i < 256; i++) {
        DONE(cenote_pool_lend(p.scene.pool, NULL, &loan));
        first = first ? first : loan;
    }
    EXPECT_EQ(cenote_pool_lend(p.scene.pool, NULL, &loan), CENOTE_BUSY);
    DONE(cenote_loan_end(first, NULL));
    EXPECT_EQ(cenote_loan_end(first, NULL), CENOTE_INVALID);
    DONE(cenote_pool_destroy(p.scene.pool));
    EXPECT_EQ(cenote_loan_end(loan, NULL), CENOTE_INVALID);
    p.scene.pool = NULL;
    close_pair(&p);
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], OTHER_WORD))
        return other_main(argv[2]);
    return test_run("lend", argc > 1 ? argv[1] : "", NULL, scene_after);
}
