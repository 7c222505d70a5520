/*
 * agent.h: another process that uses the simulated GPU, for tests of what processes share. It is this program, started anew (fork and
 * exec): it does what it is asked, one call at a time, and answers with the call's result.
 *
 *     struct agent other;
 *     agent_start(&other, "capacity:1GiB");
 *     EXPECT_OK(agent_open(&other, handle, &at));
 *     agent_end(&other);
 *
 * The program's main is AGENT_MAIN_AROUND. An agent has one stream, the default one, and keeps the primary context of device 0 current.
 */
#ifndef CENOTE_TESTS_SIM_AGENT_H
#define CENOTE_TESTS_SIM_AGENT_H

#include <sys/types.h>

#include "tests/sim/simulated.h"

struct agent {
    pid_t process;
    int   socket;
};

void agent_start(struct agent *a, const char *shape);   /* of its machine, as CENOTE_SIM; it sees all devices */
void agent_start_seeing(struct agent *a, const char *shape, const char *visible);   /* as CUDA_VISIBLE_DEVICES */
void agent_end(struct agent *a);                        /* it ends in order */
void agent_kill(struct agent *a);                       /* it dies */
int  agent_main(void);

CUresult agent_alloc(struct agent *a, size_t bytes, CUdeviceptr *at);
CUresult agent_free(struct agent *a, CUdeviceptr at);
CUresult agent_get(struct agent *a, CUdeviceptr at, CUipcMemHandle *handle);
CUresult agent_open(struct agent *a, CUipcMemHandle handle, CUdeviceptr *at);
CUresult agent_close(struct agent *a, CUdeviceptr at);
CUresult agent_create(struct agent *a, size_t bytes, CUdeviceptr *at, int *file);   /* exportable, mapped; its file */
CUresult agent_import(struct agent *a, int file, size_t bytes, CUdeviceptr *at);    /* and maps it */
CUresult agent_unmap(struct agent *a, CUdeviceptr at, size_t bytes);
CUresult agent_fill(struct agent *a, CUdeviceptr at, uint64_t pattern, size_t bytes);
uint64_t agent_differ(struct agent *a, CUdeviceptr at, uint64_t pattern, size_t bytes);     /* words that are not `pattern` */
CUresult agent_wait(struct agent *a, uint64_t ns);      /* a kernel that takes that long */
CUresult agent_event(struct agent *a, uint64_t *event, CUipcEventHandle *handle);   /* a new one, interprocess */
CUresult agent_open_event(struct agent *a, CUipcEventHandle handle, uint64_t *event);
CUresult agent_record(struct agent *a, uint64_t event);
CUresult agent_query(struct agent *a, uint64_t event);
CUresult agent_synchronize(struct agent *a, uint64_t event);
CUresult agent_stream_wait(struct agent *a, uint64_t event);
void     agent_begin_stream_wait(struct agent *a, uint64_t event);  /* it waits while we go on; nothing else is asked before its answer */
CUresult agent_answer(struct agent *a);
CUresult agent_destroy(struct agent *a, uint64_t event);
uint64_t agent_left(struct agent *a);                   /* cuMemGetInfo */
uint64_t agent_violations(struct agent *a);

/* --- the same for this process, and what tests of handles need */
uint64_t own_differ(CUdeviceptr at, uint64_t pattern, size_t bytes);
void     own_fill(CUdeviceptr at, uint64_t pattern, size_t bytes);
void     agent_flip(unsigned char *bytes, uint32_t count);      /* a few of them, at random, the same at every run */
bool     agent_is_refusal(CUresult result);                     /* of a damaged handle */

#define ALONE "capacity:1GiB,context_bytes:64MiB"               /* the shape of an agent on no machine */
#define AGENT_WORD "--agent"
#define AGENT_MAIN_AROUND(name, before, after)                                                     \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        if (argc > 1 && strcmp(argv[1], AGENT_WORD) == 0)                                          \
            return agent_main();                                                                   \
        return test_run((name), argc > 1 ? argv[1] : "", (before), (after));                       \
    }

#endif
