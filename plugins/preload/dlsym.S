/*
 * dlsym.S: the dlsym and the dlvsym that a program finds before the C library's. Where they give nothing of ours they jump to the C library's as
 * if the program had called that: RTLD_NEXT goes by the address that a call returns to, so that a call from here would break it for every other
 * library.
 *
 *     route_dlsym(handle, name, return address)              NULL: not ours (routes.c)
 *     route_dlvsym(handle, name, version, return address)    the same
 *     route_next, route_next_of_version                      the C library's; those two have set them
 */
#if defined(__x86_64__)
    .text
    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    endbr64
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    mov 24(%rsp), %rdx
    call route_dlsym
    add $8, %rsp
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    test %rax, %rax
    jz 1f
    ret
1:  jmp *route_next(%rip)
    .cfi_endproc
    .size dlsym, . - dlsym

    .globl dlvsym
    .type dlvsym, @function
dlvsym:
    .cfi_startproc
    endbr64
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    push %rdx
    .cfi_adjust_cfa_offset 8
    mov 24(%rsp), %rcx
    call route_dlvsym
    pop %rdx
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    test %rax, %rax
    jz 1f
    ret
1:  jmp *route_next_of_version(%rip)
    .cfi_endproc
    .size dlvsym, . - dlvsym
#elif defined(__aarch64__)
    .text
    .globl dlsym
    .type dlsym, %function
dlsym:
    .cfi_startproc
    stp x29, x30, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    .cfi_offset 29, -32
    .cfi_offset 30, -24
    stp x0, x1, [sp, #16]
    mov x2, x30
    bl route_dlsym
    mov x9, x0
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_restore 29
    .cfi_restore 30
    .cfi_adjust_cfa_offset -32
    cbz x9, 1f
    mov x0, x9
    ret
1:  adrp x9, route_next
    ldr x9, [x9, #:lo12:route_next]
    br x9
    .cfi_endproc
    .size dlsym, . - dlsym

    .globl dlvsym
    .type dlvsym, %function
dlvsym:
    .cfi_startproc
    stp x29, x30, [sp, #-48]!
    .cfi_adjust_cfa_offset 48
    .cfi_offset 29, -48
    .cfi_offset 30, -40
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    mov x3, x30
    bl route_dlvsym
    mov x9, x0
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    .cfi_restore 29
    .cfi_restore 30
    .cfi_adjust_cfa_offset -48
    cbz x9, 1f
    mov x0, x9
    ret
1:  adrp x9, route_next_of_version
    ldr x9, [x9, #:lo12:route_next_of_version]
    br x9
    .cfi_endproc
    .size dlvsym, . - dlvsym
#else
#error "dlsym.S knows x86-64 and aarch64"
#endif
    .section .note.GNU-stack, "", %progbits
