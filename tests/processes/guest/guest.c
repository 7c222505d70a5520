/* guest.c: a library of the program's own: what it is told to do it does when it is unloaded, or at the end of the process. */

__attribute__((visibility("default"))) void guest_at_end(void (*function)(void));

static void (*at_end)(void);

void guest_at_end(void (*function)(void))
{
    at_end = function;
}

__attribute__((destructor)) static void end(void)
{
    if (at_end)
        at_end();
}
