/*
 * stubs.S: the functions that the forwarding libcuda.so.1 does not serve: each jumps to the driver's, with all that its caller gave it. The symbols
 * are weak, so those that hooks.c has are served instead.
 *
 *     stub_slots   where each jumps to, in the order of names.def: stub_first, until stubs.c has looked
 *     stub_first   asks stub_find for the function of that number, and jumps there; keeps the registers in which arguments come
 *
 * No instruction in a C comment here: the preprocessor reads this file for two processors.
 */
#if defined(__x86_64__)
    .macro forward name
    .weak \name
    .type \name, @function
\name:
    .cfi_startproc
    endbr64
    mov $number, %r11d
    jmp *stub_slots+8*number(%rip)
    .cfi_endproc
    .size \name, . - \name
    .set number, number + 1
    .endm

    .text
    .globl stub_first
    .hidden stub_first
    .hidden stub_slots
    .type stub_first, @function
stub_first:
    .cfi_startproc
    endbr64
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    push %rdx
    .cfi_adjust_cfa_offset 8
    push %rcx
    .cfi_adjust_cfa_offset 8
    push %r8
    .cfi_adjust_cfa_offset 8
    push %r9
    .cfi_adjust_cfa_offset 8
    sub $136, %rsp
    .cfi_adjust_cfa_offset 136
    movups %xmm0, (%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    mov %r11d, %edi
    call stub_find
    movups (%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    add $136, %rsp
    .cfi_adjust_cfa_offset -136
    pop %r9
    .cfi_adjust_cfa_offset -8
    pop %r8
    .cfi_adjust_cfa_offset -8
    pop %rcx
    .cfi_adjust_cfa_offset -8
    pop %rdx
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    jmp *%rax
    .cfi_endproc
    .size stub_first, . - stub_first
#elif defined(__aarch64__)
    .macro forward name
    .weak \name
    .type \name, %function
\name:
    .cfi_startproc
    hint #34
    mov w17, #number
    adrp x16, stub_slots+8*number
    ldr x16, [x16, #:lo12:stub_slots+8*number]
    br x16
    .cfi_endproc
    .size \name, . - \name
    .set number, number + 1
    .endm

    .text
    .globl stub_first
    .hidden stub_first
    .hidden stub_slots
    .type stub_first, %function
stub_first:
    .cfi_startproc
    hint #34
    stp x29, x30, [sp, #-224]!
    .cfi_adjust_cfa_offset 224
    .cfi_offset 29, -224
    .cfi_offset 30, -216
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w17
    bl stub_find
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    .cfi_restore 29
    .cfi_restore 30
    .cfi_adjust_cfa_offset -224
    br x16
    .cfi_endproc
    .size stub_first, . - stub_first
#else
#error "stubs.S knows x86-64 and aarch64"
#endif

    .set number, 0
#define FORWARD(name) forward name;
#include "plugins/forward/names.def"
    .section .note.GNU-stack, "", %progbits
