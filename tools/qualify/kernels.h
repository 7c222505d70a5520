/*
 * kernels.h: the kernels of cenote-qualify as PTX text, which the driver compiles, so no nvcc is needed. sim/code/kernels.def has the same names.
 *
 *     pattern_write(at, words, pattern)                   writes `pattern` to words of 8 bytes
 *     pattern_count(at, words, pattern, sum)              adds to *sum how many words are not `pattern`
 *     pattern_wait(ns)                                    runs for that time
 *     pattern_write_early(at, words, pattern, ns)         lets its successor begin, waits, then writes
 *     pattern_count_late(at, words, pattern, sum)         begins early, waits for its predecessor, then counts
 *
 * The last two need programmatic dependent launch: compute capability 9.0.
 */
#ifndef CENOTE_QUALIFY_KERNELS_H
#define CENOTE_QUALIFY_KERNELS_H

/* %rd1: at, %rd2: words, %rd3: pattern, %rd4: index of this thread's next word, %rd5: threads of the grid, %rd6: address of the word. */
#define PTX_BEGIN                             \
    "{\n"                                     \
    ".reg .pred %p;\n"                        \
    ".reg .b32 %r<4>;\n"                      \
    ".reg .b64 %rd<12>;\n"                    \
    "ld.param.u64 %rd1, [at];\n"              \
    "ld.param.u64 %rd2, [words];\n"           \
    "ld.param.u64 %rd3, [pattern];\n"         \
    "mov.u32 %r1, %ctaid.x;\n"                \
    "mov.u32 %r2, %ntid.x;\n"                 \
    "mov.u32 %r3, %tid.x;\n"                  \
    "mul.wide.u32 %rd4, %r1, %r2;\n"          \
    "cvt.u64.u32 %rd5, %r3;\n"                \
    "add.u64 %rd4, %rd4, %rd5;\n"             \
    "mov.u32 %r1, %nctaid.x;\n"               \
    "mul.wide.u32 %rd5, %r1, %r2;\n"
#define PTX_EACH_WORD                         \
    "NEXT:\n"                                 \
    "setp.ge.u64 %p, %rd4, %rd2;\n"           \
    "@%p bra DONE;\n"                         \
    "shl.b64 %rd6, %rd4, 3;\n"                \
    "add.u64 %rd6, %rd6, %rd1;\n"             \
    "add.u64 %rd4, %rd4, %rd5;\n"
#define PTX_WRITE                             \
    PTX_EACH_WORD                             \
    "st.global.u64 [%rd6], %rd3;\n"           \
    "bra NEXT;\n"                             \
    "DONE:\n"                                 \
    "ret;\n"                                  \
    "}\n"
/* %rd9: words that differ. */
#define PTX_COUNT                             \
    "ld.param.u64 %rd7, [sum];\n"             \
    "mov.u64 %rd9, 0;\n"                      \
    PTX_EACH_WORD                             \
    "ld.global.u64 %rd8, [%rd6];\n"           \
    "setp.eq.u64 %p, %rd8, %rd3;\n"           \
    "@%p bra NEXT;\n"                         \
    "add.u64 %rd9, %rd9, 1;\n"                \
    "bra NEXT;\n"                             \
    "DONE:\n"                                 \
    "setp.eq.u64 %p, %rd9, 0;\n"              \
    "@%p bra RIGHT;\n"                        \
    "red.global.add.u64 [%rd7], %rd9;\n"      \
    "RIGHT:\n"                                \
    "ret;\n"                                  \
    "}\n"
/* Waits until %rd7 ns have passed on the card's clock. */
#define PTX_WAIT                              \
    "mov.u64 %rd10, %globaltimer;\n"          \
    "WAIT:\n"                                 \
    "mov.u64 %rd11, %globaltimer;\n"          \
    "sub.u64 %rd11, %rd11, %rd10;\n"          \
    "setp.lt.u64 %p, %rd11, %rd7;\n"          \
    "@%p bra WAIT;\n"

static const char kernels_ptx[] =
    ".version 6.0\n.target sm_60\n.address_size 64\n"
    ".visible .entry pattern_write(.param .u64 at, .param .u64 words, .param .u64 pattern)\n"
    PTX_BEGIN PTX_WRITE
    ".visible .entry pattern_count(.param .u64 at, .param .u64 words, .param .u64 pattern, .param .u64 sum)\n"
    PTX_BEGIN PTX_COUNT
    ".visible .entry pattern_wait(.param .u64 ns)\n"
    "{\n.reg .pred %p;\n.reg .b64 %rd<12>;\n"
    "ld.param.u64 %rd7, [ns];\n"
    PTX_WAIT
    "ret;\n}\n";

static const char kernels_dependent_ptx[] =
    ".version 7.8\n.target sm_90\n.address_size 64\n"
    ".visible .entry pattern_write_early(.param .u64 at, .param .u64 words, .param .u64 pattern, .param .u64 ns)\n"
    PTX_BEGIN
    "griddepcontrol.launch_dependents;\n"
    "ld.param.u64 %rd7, [ns];\n"
    PTX_WAIT PTX_WRITE
    ".visible .entry pattern_count_late(.param .u64 at, .param .u64 words, .param .u64 pattern, .param .u64 sum)\n"
    PTX_BEGIN
    "griddepcontrol.wait;\n"
    PTX_COUNT;

#endif
