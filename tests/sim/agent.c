/* agent.c: see agent.h. */
#include "tests/sim/agent.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "tests/patience.h"

#define AGENT_SOCKET 3
#define PATIENCE 30     /* s for an answer */

enum op {
    ALLOC, FREE, GET, OPEN, CLOSE, CREATE, IMPORT, UNMAP, FILL, DIFFER, WAIT, EVENT, OPEN_EVENT, RECORD, QUERY, SYNCHRONIZE, STREAM_WAIT,
    DESTROY, LEFT, VIOLATIONS, END
};

struct message {
    uint32_t op;
    int32_t  result;
    uint64_t at, bytes, pattern;
    CUipcMemHandle memory;
    CUipcEventHandle event;
};

union control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

static bool send_message(int socket, struct message *m, int file)
{
    union control control = {.bytes = {0}};
    struct iovec data = {m, sizeof *m};
    struct msghdr header = {.msg_iov = &data, .msg_iovlen = 1};
    if (file >= 0) {
        header.msg_control = &control;
        header.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof file);
        memcpy(CMSG_DATA(c), &file, sizeof file);
    }
    return sendmsg(socket, &header, MSG_NOSIGNAL) == (ssize_t)sizeof *m;
}

static bool receive_message(int socket, struct message *m, int *file)
{
    union control control;
    struct iovec data = {m, sizeof *m};
    struct msghdr header = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &header, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *m)
        return false;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    *file = -1;
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(file, CMSG_DATA(c), sizeof *file);
    return true;
}

/* --- in the other process */

static CUresult map_here(CUmemGenericAllocationHandle handle, size_t bytes, CUdeviceptr *at)
{
    CUmemAccessDesc who = {.location = machine_memory_of(0).location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = cuMemAddressReserve(at, bytes, 0, 0, 0);
    if (!result)
        result = cuMemMap(*at, bytes, 0, handle, 0);
    if (!result)
        result = cuMemSetAccess(*at, bytes, &who, 1);
    cuMemRelease(handle);
    return result;
}

static CUresult create_here(size_t bytes, CUdeviceptr *at, int *file)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = machine_memory_of(0);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUresult result = cuMemCreate(&handle, bytes, &prop, 0);
    if (result)
        return result;
    result = cuMemExportToShareableHandle(file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    return result ? result : map_here(handle, bytes, at);
}

static CUresult import_here(int file, size_t bytes, CUdeviceptr *at)
{
    CUmemGenericAllocationHandle handle;
    CUresult result = cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    return result ? result : map_here(handle, bytes, at);
}

static CUresult unmap_here(CUdeviceptr at, size_t bytes)
{
    CUresult result = cuMemUnmap(at, bytes);
    return result ? result : cuMemAddressFree(at, bytes);
}

static CUresult differ_here(struct message *m)
{
    uint64_t before = sim_mismatches();
    CUresult result = sim_launch_expect(NULL, m->at, m->pattern, m->bytes);
    if (!result)
        result = cuCtxSynchronize();
    m->bytes = sim_mismatches() - before;
    return result;
}

static CUresult event_here(struct message *m)
{
    CUevent event;
    CUresult result = cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    m->at = (uint64_t)event;
    return result ? result : cuIpcGetEventHandle(&m->event, event);
}

static CUresult do_event(struct message *m)
{
    CUevent event = (CUevent)m->at;
    switch (m->op) {
    case OPEN_EVENT: {
        CUresult result = cuIpcOpenEventHandle(&event, m->event);
        m->at = (uint64_t)event;
        return result;
    }
    case RECORD:
        return cuEventRecord(event, NULL);
    case QUERY:
        return cuEventQuery(event);
    case SYNCHRONIZE:
        return cuEventSynchronize(event);
    case STREAM_WAIT:
        return cuStreamWaitEvent(NULL, event, 0);
    case DESTROY:
        return cuEventDestroy(event);
    default:
        return event_here(m);
    }
}

static CUresult do_op(struct message *m, int *file)
{
    CUdeviceptr at = m->at;
    size_t left = 0, total;
    CUresult result = CUDA_SUCCESS;
    switch (m->op) {
    case ALLOC:
        result = cuMemAlloc(&at, m->bytes);
        break;
    case FREE:
        return cuMemFree(at);
    case GET:
        return cuIpcGetMemHandle(&m->memory, at);
    case OPEN:
        result = cuIpcOpenMemHandle(&at, m->memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        break;
    case CLOSE:
        return cuIpcCloseMemHandle(at);
    case CREATE:
        result = create_here(m->bytes, &at, file);
        break;
    case IMPORT:
        result = import_here(*file, m->bytes, &at);
        close(*file);
        *file = -1;
        break;
    case UNMAP:
        return unmap_here(at, m->bytes);
    case FILL:
        return sim_launch_fill(NULL, at, m->pattern, m->bytes);
    case DIFFER:
        return differ_here(m);
    case WAIT:
        return sim_launch_wait(NULL, m->bytes);
    case LEFT:
        result = cuMemGetInfo(&left, &total);
        m->bytes = left;
        break;
    case VIOLATIONS:
        m->bytes = simulated_violations();
        break;
    default:
        return do_event(m);
    }
    m->at = at;
    return result;
}

int agent_main(void)
{
    struct message m;
    CUcontext context;
    int file;
    m.result = (int32_t)cuInit(0);
    if (!m.result)
        m.result = (int32_t)cuDevicePrimaryCtxRetain(&context, 0);
    if (!m.result)
        m.result = (int32_t)cuCtxSetCurrent(context);
    while (send_message(AGENT_SOCKET, &m, -1) && receive_message(AGENT_SOCKET, &m, &file) && m.op != END) {
        m.result = (int32_t)do_op(&m, &file);
        if (file < 0)
            continue;
        send_message(AGENT_SOCKET, &m, file); /* a file goes ahead of the answer */
        close(file);
    }
    return 0;
}

/* --- in the test */

static CUresult ask(struct agent *a, struct message *m, int *file)
{
    int got;
    REQUIRE(send_message(a->socket, m, file ? *file : -1));
    REQUIRE(receive_message(a->socket, m, &got));
    if (got >= 0 && file) {
        *file = got;
        REQUIRE(receive_message(a->socket, m, &got));
    }
    return (CUresult)m->result;
}

static void become_agent(int socket, const char *shape, const char *visible)
{
    char text[512];
    char *arguments[] = {"agent", AGENT_WORD, NULL};
    snprintf(text, sizeof text, "quiet:1,%s", shape);
    setenv("CENOTE_SIM", text, 1);
    if (!visible || setenv("CUDA_VISIBLE_DEVICES", visible, 1))
        unsetenv("CUDA_VISIBLE_DEVICES");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dup2(socket, AGENT_SOCKET) < 0) /* without close-on-exec */
        _exit(126);
    if (socket == AGENT_SOCKET)
        fcntl(socket, F_SETFD, 0);
    execv("/proc/self/exe", arguments);
    _exit(127);
}

void agent_start_seeing(struct agent *a, const char *shape, const char *visible)
{
    int ends[2];
    struct message m;
    struct timeval most = {.tv_sec = patience(PATIENCE)};
    fflush(NULL);
    REQUIRE(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    a->process = fork();
    REQUIRE(a->process >= 0);
    if (!a->process)
        become_agent(ends[1], shape, visible);
    close(ends[1]);
    a->socket = ends[0];
    setsockopt(a->socket, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    int file;
    REQUIRE(receive_message(a->socket, &m, &file));
    REQUIRE_OK((CUresult)m.result);
}

void agent_start(struct agent *a, const char *shape)
{
    agent_start_seeing(a, shape, NULL);
}

void agent_end(struct agent *a)
{
    int status = -1;
    struct message m = {.op = END};
    EXPECT(send_message(a->socket, &m, -1));
    EXPECT(waitpid(a->process, &status, 0) == a->process);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(a->socket);
}

void agent_kill(struct agent *a)
{
    kill(a->process, SIGKILL);
    EXPECT(waitpid(a->process, NULL, 0) == a->process);
    close(a->socket);
}

CUresult agent_alloc(struct agent *a, size_t bytes, CUdeviceptr *at)
{
    struct message m = {.op = ALLOC, .bytes = bytes};
    CUresult result = ask(a, &m, NULL);
    *at = m.at;
    return result;
}

CUresult agent_free(struct agent *a, CUdeviceptr at)
{
    return ask(a, &(struct message){.op = FREE, .at = at}, NULL);
}

CUresult agent_get(struct agent *a, CUdeviceptr at, CUipcMemHandle *handle)
{
    struct message m = {.op = GET, .at = at};
    CUresult result = ask(a, &m, NULL);
    *handle = m.memory;
    return result;
}

CUresult agent_open(struct agent *a, CUipcMemHandle handle, CUdeviceptr *at)
{
    struct message m = {.op = OPEN, .memory = handle};
    CUresult result = ask(a, &m, NULL);
    *at = m.at;
    return result;
}

CUresult agent_close(struct agent *a, CUdeviceptr at)
{
    return ask(a, &(struct message){.op = CLOSE, .at = at}, NULL);
}

CUresult agent_create(struct agent *a, size_t bytes, CUdeviceptr *at, int *file)
{
    struct message m = {.op = CREATE, .bytes = bytes};
    *file = -1;
    CUresult result = ask(a, &m, file);
    *at = m.at;
    return result;
}

CUresult agent_import(struct agent *a, int file, size_t bytes, CUdeviceptr *at)
{
    struct message m = {.op = IMPORT, .bytes = bytes};
    CUresult result = ask(a, &m, &file);
    *at = m.at;
    return result;
}

CUresult agent_unmap(struct agent *a, CUdeviceptr at, size_t bytes)
{
    return ask(a, &(struct message){.op = UNMAP, .at = at, .bytes = bytes}, NULL);
}

CUresult agent_fill(struct agent *a, CUdeviceptr at, uint64_t pattern, size_t bytes)
{
    return ask(a, &(struct message){.op = FILL, .at = at, .pattern = pattern, .bytes = bytes}, NULL);
}

uint64_t agent_differ(struct agent *a, CUdeviceptr at, uint64_t pattern, size_t bytes)
{
    struct message m = {.op = DIFFER, .at = at, .pattern = pattern, .bytes = bytes};
    EXPECT_OK(ask(a, &m, NULL));
    return m.bytes;
}

CUresult agent_wait(struct agent *a, uint64_t ns)
{
    return ask(a, &(struct message){.op = WAIT, .bytes = ns}, NULL);
}

CUresult agent_event(struct agent *a, uint64_t *event, CUipcEventHandle *handle)
{
    struct message m = {.op = EVENT};
    CUresult result = ask(a, &m, NULL);
    *event = m.at;
    *handle = m.event;
    return result;
}

CUresult agent_open_event(struct agent *a, CUipcEventHandle handle, uint64_t *event)
{
    struct message m = {.op = OPEN_EVENT, .event = handle};
    CUresult result = ask(a, &m, NULL);
    *event = m.at;
    return result;
}

static CUresult ask_event(struct agent *a, enum op op, uint64_t event)
{
    return ask(a, &(struct message){.op = op, .at = event}, NULL);
}

CUresult agent_record(struct agent *a, uint64_t event)
{
    return ask_event(a, RECORD, event);
}

CUresult agent_query(struct agent *a, uint64_t event)
{
    return ask_event(a, QUERY, event);
}

CUresult agent_synchronize(struct agent *a, uint64_t event)
{
    return ask_event(a, SYNCHRONIZE, event);
}

CUresult agent_stream_wait(struct agent *a, uint64_t event)
{
    return ask_event(a, STREAM_WAIT, event);
}

void agent_begin_stream_wait(struct agent *a, uint64_t event)
{
    REQUIRE(send_message(a->socket, &(struct message){.op = STREAM_WAIT, .at = event}, -1));
}

CUresult agent_answer(struct agent *a)
{
    int file;
    struct message m;
    REQUIRE(receive_message(a->socket, &m, &file));
    return (CUresult)m.result;
}

CUresult agent_destroy(struct agent *a, uint64_t event)
{
    return ask_event(a, DESTROY, event);
}

uint64_t agent_left(struct agent *a)
{
    struct message m = {.op = LEFT};
    EXPECT_OK(ask(a, &m, NULL));
    return m.bytes;
}

uint64_t agent_violations(struct agent *a)
{
    struct message m = {.op = VIOLATIONS};
    EXPECT_OK(ask(a, &m, NULL));
    return m.bytes;
}

uint64_t own_differ(CUdeviceptr at, uint64_t pattern, size_t bytes)
{
    uint64_t before = sim_mismatches();
    EXPECT_OK(sim_launch_expect(NULL, at, pattern, bytes));
    EXPECT_OK(cuCtxSynchronize());
    return sim_mismatches() - before;
}

void own_fill(CUdeviceptr at, uint64_t pattern, size_t bytes)
{
    EXPECT_OK(sim_launch_fill(NULL, at, pattern, bytes));
    EXPECT_OK(cuCtxSynchronize());
}

static uint64_t random_state = 88172645463325252ull;

static uint32_t random_below(uint32_t most)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 33) % most;
}

void agent_flip(unsigned char *bytes, uint32_t count)
{
    for (uint32_t flips = 1 + random_below(4); flips; flips--)
        bytes[random_below(count)] ^= (unsigned char)(1 + random_below(255));
}

bool agent_is_refusal(CUresult result)
{
    return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE;
}
