/*
 * table.c: the table as text, a line for each row of calls.def, and what each answer rests on.
 *
 * A cell is the number of the CUresult, then what became of the capture, then what the answer rests on:
 *
 *     900x    the capture is invalid         *    a card was seen to do it (grounds.def says where)
 *     0e      there is no capture any more   '    documented
 *     0       it goes on, or there was none  ~    reported by others, of cards of theirs
 *                                            ?    assumed
 */
#include "tools/ask/ask.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

enum ground { ASSUMED, REPORTED, DOCUMENTED, SEEN };

struct ground_row {
    enum ground ground;
    const char *name;           /* pattern of fnmatch */
    unsigned    states;
    const char *text;
};

static const struct ground_row grounds[] = {
#define IN(state) (1u << STATE_##state)
#define GROUND(ground, name, states, text, source) {ground, name, states, text},
#include "tools/ask/grounds.def"
#undef GROUND
    {ASSUMED, NULL, 0, NULL}
};

void table_name(const struct row *row, char name[96])
{
    static const char *const on[] = {"", " captured", " beside", " default"};
    bool only = !strcmp(row->which, "it");
    snprintf(name, 96, "%s%s%s%s", row->symbol, on[row->on], only ? "" : " ", only ? "" : row->which);
}

static void write_answer(const struct answer *answer, char text[CELL])
{
    static const char *const fates[] = {"", "", "x", "e"};
    if (answer->kind == ANSWERED)
        snprintf(text, CELL, "%d%s", (int)answer->result, fates[answer->fate]);
    else
        snprintf(text, CELL, "%s", answer->kind == DIED ? "dies" : "-");
}

static char mark_of(const char *name, enum state state, const char *text)
{
    for (const struct ground_row *g = grounds; g->name; g++)
        if (g->states & 1u << state && !strcmp(g->text, text) && !fnmatch(g->name, name, 0))
            return "?~'*"[g->ground];
    return '?';
}

static size_t contradicts(const struct ground_row *g, const struct answer *answers)
{
    char name[96], text[CELL];
    size_t contradictions = 0, lines = 0;
    for (size_t row = 0; row < row_count(); row++) {
        table_name(&rows[row], name);
        if (fnmatch(g->name, name, 0))
            continue;
        lines++;
        for (enum state state = 0; state < STATES; state++) {
            write_answer(&answers[row * STATES + state], text);
            if (!(g->states & 1u << state) || !strcmp(text, g->text) || !strcmp(text, "-"))
                continue;
            fprintf(stderr, "%s, %s: %s, and a card was seen to answer %s\n", name, states[state].heading, text, g->text);
            contradictions++;
        }
    }
    if (!lines)
        fprintf(stderr, "grounds.def: %s is the name of no line\n", g->name);
    return contradictions + !lines;
}

size_t table_contradictions(const struct answer *answers)
{
    size_t contradictions = 0;
    for (const struct ground_row *g = grounds; g->name; g++)
        if (g->ground == SEEN)
            contradictions += contradicts(g, answers);
    return contradictions;
}

/* A line without its end, as in the file. */
static void write_line(const struct answer *answers, size_t row, char *line, size_t room)
{
    char name[96], text[CELL];
    table_name(&rows[row], name);
    size_t at = (size_t)snprintf(line, room, "%-60s", name);
    for (enum state state = 0; state < STATES; state++) {
        write_answer(&answers[row * STATES + state], text);
        char mark = strcmp(text, "-") ? mark_of(name, state, text) : ' ';
        at += (size_t)snprintf(line + at, room - at, "%9s%c", text, mark);
    }
}

void table_print(const struct answer *answers)
{
    char line[512];
    printf("# What the driver answers when, by cenote-ask (tools/ask). A cell: the CUresult; x: the capture is invalid, e: there is none any more;\n"
           "# *: seen on a card, ': documented, ~: reported by others, ?: assumed (tools/ask/grounds.def). -: not asked.\n"
           "# The columns: tools/ask/states.def.\n");
    printf("#%-59s", "");
    for (enum state state = 0; state < STATES; state++)
        printf("%9s ", states[state].heading);
    printf("\n");
    for (size_t row = 0; row < row_count(); row++) {
        write_line(answers, row, line, sizeof line);
        printf("%s\n", line);
    }
}

size_t table_compare(const struct answer *answers, const char *path)
{
    char line[512], known[512];
    size_t row = 0, differ = 0;
    FILE *file = fopen(path, "r");
    if (!file) {
        perror(path);
        return 1;
    }
    while (fgets(known, sizeof known, file)) {
        if (known[0] == '#')
            continue;
        known[strcspn(known, "\n")] = 0;
        if (row < row_count())
            write_line(answers, row, line, sizeof line);
        if (row++ < row_count() && !strcmp(line, known))
            continue;
        printf("- %s\n+ %s\n", known, row <= row_count() ? line : "");
        differ++;
    }
    fclose(file);
    return differ + (row < row_count() ? row_count() - row : 0);
}
