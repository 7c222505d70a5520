/*
 * nvrtc.c: the run-time compiler, which reads no source: a program compiles always, to an image that the simulated driver takes as a module
 * with a kernel of any name. So a name expression is its own lowered name.
 *
 * PyTorch keeps what it compiled at run time in a folder under the user's home, by device type, for other processes: an image of ours would fail on a
 * real GPU later. So a process that asks for the version, as PyTorch does before it looks for that cache, or makes a program, has it turned off in
 * its environment, unless the user chose. A process that compiles nothing keeps its environment as it was.
 *
 * LOCKING: none; a program is used by one thread at a time, as with the real library.
 */
#include <stdio.h>
#include <stdlib.h>

#include "sim/libraries/answer.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define MAGIC 0x6372766eu
#define IMAGE "// The simulated GPU runs no code.\n.version 8.8\n.target sm_%.8s\n.address_size 64\n"

enum { INVALID_INPUT = 3, INVALID_PROGRAM = 4, AFTER_COMPILATION = 8, BEFORE_COMPILATION = 9, INVALID_EXPRESSION = 10 }; /* NVRTC_ERROR_ */

struct expression {
    struct expression *next;
    char               text[];
};

struct program {
    unsigned           magic;
    bool               compiled;
    bool               for_linker;  /* compiled with -dlto: there is code for the linker, too */
    bool               real;        /* for a real architecture, sm_NN: there is machine code beside the PTX */
    struct expression *expressions;
    char               image[sizeof IMAGE + 16];
};

static void keep_out_of_caches(void)
{
    setenv("USE_PYTORCH_KERNEL_CACHE", "0", 0);
}

int nvrtcVersion(int *major, int *minor)
{
    if (!major || !minor)
        return INVALID_INPUT;
    keep_out_of_caches();
    *major = CUDA_VERSION / 1000;
    *minor = CUDA_VERSION % 1000 / 10;
    return 0;
}

const char *nvrtcGetErrorString(int error)
{
    static const char *const texts[] = {
        "NVRTC_SUCCESS", "NVRTC_ERROR_OUT_OF_MEMORY", "NVRTC_ERROR_PROGRAM_CREATION_FAILURE", "NVRTC_ERROR_INVALID_INPUT",
        "NVRTC_ERROR_INVALID_PROGRAM", "NVRTC_ERROR_INVALID_OPTION", "NVRTC_ERROR_COMPILATION", "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION", "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
        "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID", "NVRTC_ERROR_INTERNAL_ERROR",
    };
    return error >= 0 && error < (int)(sizeof texts / sizeof *texts) ? texts[error] : "NVRTC_ERROR unknown";
}

static bool is_program(const struct program *p)
{
    return p && p->magic == MAGIC;
}

int nvrtcCreateProgram(struct program **made, const char *source, const char *name, int headers, const char *const *texts,
                       const char *const *names)
{
    (void)name;
    if (!made || !source || headers < 0 || (headers && (!texts || !names)))
        return INVALID_INPUT;
    *made = calloc(1, sizeof **made);
    if (!*made)
        return status.no_memory;
    (*made)->magic = MAGIC;
    keep_out_of_caches();
    return 0;
}

int nvrtcDestroyProgram(struct program **program)
{
    if (!program || !is_program(*program))
        return INVALID_PROGRAM;
    for (struct expression *e = (*program)->expressions, *next; e; e = next) {
        next = e->next;
        free(e);
    }
    marked_free(*program);
    *program = NULL;
    return 0;
}

static struct expression *find(const struct program *p, const char *text)
{
    struct expression *e = p->expressions;
    while (e && strcmp(e->text, text) != 0)
        e = e->next;
    return e;
}

int nvrtcAddNameExpression(struct program *program, const char *text)
{
    if (!is_program(program))
        return INVALID_PROGRAM;
    if (!text)
        return INVALID_INPUT;
    if (program->compiled)
        return AFTER_COMPILATION;
    if (find(program, text))
        return 0;
    size_t bytes = strlen(text) + 1;
    struct expression *e = malloc(sizeof *e + bytes);
    if (!e)
        return status.no_memory;
    memcpy(e->text, text, bytes);
    e->next = program->expressions;
    program->expressions = e;
    return 0;
}

int nvrtcGetLoweredName(const struct program *program, const char *text, const char **lowered)
{
    if (!is_program(program))
        return INVALID_PROGRAM;
    if (!text || !lowered)
        return INVALID_INPUT;
    if (!program->compiled)
        return BEFORE_COMPILATION;
    const struct expression *e = find(program, text);
    if (!e)
        return INVALID_EXPRESSION;
    *lowered = e->text;
    return 0;
}

/* Where an option names an architecture, "sm_90" or "compute_90": after its '=', or alone when it came as a second word; or NULL. */
static const char *architecture(const char *option)
{
    static const char *const names[] = {"-arch=", "--gpu-architecture="};
    for (int i = 0; i < 2; i++)
        if (strncmp(option, names[i], strlen(names[i])) == 0)
            option += strlen(names[i]);
    return strncmp(option, "sm_", 3) == 0 || strncmp(option, "compute_", 8) == 0 ? option : NULL;
}

int nvrtcCompileProgram(struct program *program, int count, const char *const *options)
{
    const char *chosen = "compute_75"; /* the compiler's own choice */
    bool linked_later = false;
    if (!is_program(program))
        return INVALID_PROGRAM;
    if (count < 0 || (count && !options))
        return INVALID_INPUT;
    for (int i = 0; i < count; i++) {
        if (!options[i])
            return INVALID_INPUT;
        const char *named = architecture(options[i]);
        linked_later |= strcmp(options[i], "-dlto") == 0 || strcmp(options[i], "--dlink-time-opt") == 0;
        chosen = named ? named : chosen;
    }
    program->real = chosen[0] == 's';
    program->for_linker = linked_later;
    snprintf(program->image, sizeof program->image, IMAGE, strchr(chosen, '_') + 1);
    program->compiled = true;
    return 0;
}

/* Those of the real one of CUDA 13. */
static const int architectures[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

int nvrtcGetNumSupportedArchs(int *count)
{
    if (!count)
        return INVALID_INPUT;
    *count = sizeof architectures / sizeof *architectures;
    return 0;
}

int nvrtcGetSupportedArchs(int *list)
{
    if (!list)
        return INVALID_INPUT;
    memcpy(list, architectures, sizeof architectures);
    return 0;
}

/* PTX, machine code, code for the linker, and log: each is asked for its size first, with the 0 at the end. Before compilation there is none. */
enum output { PTX, CUBIN, LTOIR, PROGRAM_LOG };

static int tell(const struct program *program, enum output output, size_t *bytes, char *to)
{
    if (!is_program(program))
        return INVALID_PROGRAM;
    const char *text = output == PROGRAM_LOG ? "" : program->image;
    bool exists = program->compiled && (output != CUBIN || program->real) && (output != LTOIR || program->for_linker);
    size_t size = exists ? strlen(text) + 1 : 0;
    if (bytes)
        *bytes = size;
    if (to)
        memcpy(to, text, size);
    return 0;
}

#define OUTPUT(name, output)                                                    \
    int nvrtcGet##name##Size(const struct program *program, size_t *bytes)      \
    {                                                                           \
        return bytes ? tell(program, output, bytes, NULL) : INVALID_INPUT;      \
    }                                                                           \
    int nvrtcGet##name(const struct program *program, char *to)                 \
    {                                                                           \
        return to ? tell(program, output, NULL, to) : INVALID_INPUT;            \
    }
OUTPUT(PTX, PTX)
OUTPUT(CUBIN, CUBIN)
OUTPUT(LTOIR, LTOIR)
OUTPUT(ProgramLog, PROGRAM_LOG)
