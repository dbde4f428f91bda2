/* Note how a program begins and ends. The library is loaded before all others (LD_PRELOAD, initfirst).
 *
 * The exit status of a plain test program says nothing if code under test ends the process with 0. So this library
 * tells m3agent that main() was called and what it returned, which code called exit(), _exit() or _Exit(), and whether
 * another function took the place of assert's.
 * Each message starts with a token that the library reads before any other code runs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef int (*main_function)(int, char **, char **);
typedef int (*start_function)(main_function, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
typedef void (*exit_function)(int);

static int channel = -1;
static pid_t owner;
static char token[64];
static int stage; /* 0: before main, 1: in main, 2: after main */
static main_function real_main;

static void tell(const char *event, int status, void *caller)
{
    char line[5000];
    Dl_info where;
    int length;

    if (channel < 0 || getpid() != owner)
        return;
    memset(&where, 0, sizeof where);
    if (caller == NULL || dladdr(caller, &where) == 0 || where.dli_fname == NULL)
        where.dli_fname = "-";
    length = snprintf(line, sizeof line, "%s %s %d %d %lx %lx %s\n", token, event, status, stage,
                      (unsigned long)caller, (unsigned long)where.dli_fbase, where.dli_fname);
    if (length > 0 && length < (int)sizeof line)
        (void)!send(channel, line, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Remove a variable from the environment, and return its value: programs that the tests start are not watched.
 * The functions of the C library cannot do this so early. */
static const char *taken(char **env, const char *name)
{
    size_t length = strlen(name);
    const char *value = NULL;
    char **kept = env;

    for (; *env != NULL; env++) {
        if (strncmp(*env, name, length) == 0 && (*env)[length] == '=')
            value = *env + length + 1;
        else
            *kept++ = *env;
    }
    *kept = NULL;
    return value;
}

__attribute__((constructor)) static void begin(int argc, char **argv, char **env)
{
    const char *number = taken(env, "M3AGENT_WITNESS");
    size_t length = 0;

    (void)argc;
    (void)argv;
    taken(env, "LD_PRELOAD");
    if (number == NULL)
        return;
    channel = atoi(number);
    owner = getpid();
    fcntl(channel, F_SETFD, FD_CLOEXEC);
    while (length < sizeof token - 1 && read(channel, token + length, 1) == 1 && token[length] != '\n')
        length++;
    token[length] = '\0';
    tell("loaded", 0, NULL);
}

/* Tell whether another function took the place of one of the C library that lets a test fail. */
static void tell_replaced(void)
{
    static const char *const names[] = {"__assert_fail", "__assert_perror_fail", "abort", "raise",
                                        "strcmp", "strncmp", "memcmp"};
    void *library = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    size_t number;

    for (number = 0; library != NULL && number < sizeof names / sizeof *names; number++) {
        void *used = dlsym(RTLD_DEFAULT, names[number]);
        char event[64];

        if (used != dlsym(library, names[number])) {
            snprintf(event, sizeof event, "replaced:%s", names[number]);
            tell(event, 0, used);
        }
    }
}

static int watched_main(int argc, char **argv, char **env)
{
    int status;

    stage = 1;
    tell_replaced();
    tell("main", 0, NULL);
    status = real_main(argc, argv, env);
    stage = 2;
    tell("return", status, NULL);
    return status;
}

int __libc_start_main(main_function program, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*linker_fini)(void), void *stack_end)
{
    start_function start = (start_function)dlsym(RTLD_NEXT, "__libc_start_main");

    real_main = program;
    return start(watched_main, argc, argv, init, fini, linker_fini, stack_end);
}

#define WATCH(name)                                               \
    void name(int status)                                         \
    {                                                             \
        exit_function real = (exit_function)dlsym(RTLD_NEXT, #name); \
        tell(#name, status, __builtin_return_address(0));         \
        real(status);                                             \
        __builtin_unreachable();                                  \
    }

WATCH(exit)
WATCH(_exit)
WATCH(_Exit)
WATCH(quick_exit)
