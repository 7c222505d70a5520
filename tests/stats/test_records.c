/* test_records.c: traces are read as they are meant, or refused with file, line and reason. */
#include <inttypes.h>
#include <unistd.h>
#include <zlib.h>

#include "stats/records/records.h"
#include "tests/harness.h"

static char path[64];

static void make_path(void)
{
    snprintf(path, sizeof(path), "%s/cenote-records-%d.csv.gz", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
}

static void remove_file(void)
{
    unlink(path);
}

static void put_file(const void *contents, size_t size)
{
    FILE *file = fopen(path, "wb");
    REQUIRE(file != NULL);
    EXPECT_EQ(fwrite(contents, 1, size, file), size);
    fclose(file);
}

static void put_text(const char *text)
{
    put_file(text, strlen(text));
}

/* Reads to the end or the first mistake; how many records came, and the last of them. */
static enum records_result read_all(unsigned *count, struct record *last, char message[1024])
{
    struct records_reader *reader = records_open(path);
    enum records_result got;
    struct record record;
    REQUIRE(reader != NULL);
    for (*count = 0; (got = records_next(reader, &record)) == RECORDS_ONE; (*count)++)
        *last = record;
    EXPECT_EQ(records_next(reader, &record), got); /* the end stays the end */
    snprintf(message, 1024, "%s", records_message(reader));
    records_close(reader);
    return got;
}

static void expect_broken(const char *text, unsigned line, const char *reason)
{
    unsigned count;
    struct record last;
    char message[1024], place[128];
    put_text(text);
    snprintf(place, sizeof(place), "%s:%u: ", path, line);
    enum records_result got = read_all(&count, &last, message);
    bool fine = got == RECORDS_BROKEN && !strncmp(message, place, strlen(place)) && strstr(message, reason);
    if (!fine)
        fprintf(stderr, "\"%.60s\" gives %d, \"%s\"\n", text, got, message);
    EXPECT(fine);
}

static void expect_records(const char *text, unsigned expected)
{
    unsigned count;
    struct record last;
    char message[1024];
    put_text(text);
    EXPECT_EQ(read_all(&count, &last, message), RECORDS_END);
    EXPECT_EQ(count, expected);
}

#define HEAD "t_us,op,id,bytes\n"

CASE(plain_files_of_any_line_end)
{
    expect_records(HEAD, 0);
    expect_records("t_us,op,id,bytes", 0);
    expect_records(HEAD "0,a,1,512\n1.5,f,1,512\n", 2);
    expect_records(HEAD "0,a,1,512\n1.5,f,1,512", 2);
    expect_records("t_us,op,id,bytes\r\n0,a,1,512\r\n1.5,f,1,512\r\n", 2);
}

CASE(columns_in_any_order_and_with_others_between)
{
    unsigned count;
    struct record r;
    char message[1024];
    put_text("name,bytes,device,id,op,color,t_us,tag,stream\nx,1024,3,77,a,red,12.3456,5,9\n");
    EXPECT_EQ(read_all(&count, &r, message), RECORDS_END);
    EXPECT_EQ(count, 1);
    EXPECT_EQ(r.t_ns, 12345);
    EXPECT_EQ(r.op, RECORD_ALLOC);
    EXPECT_EQ(r.id, 77);
    EXPECT_EQ(r.bytes, 1024);
    EXPECT_EQ(r.device, 3);
    EXPECT_EQ(r.stream, 9);
    EXPECT_EQ(r.tag, 5);
    EXPECT_EQ(r.block, 1);
}

CASE(optional_fields_may_be_missing_or_empty)
{
    unsigned count;
    struct record r;
    char message[1024];
    put_text("t_us,op,id,bytes,stream\n0,a,0,700,\n0,u,0,,4\n0,s,,,\n1,f,0,0,\n");
    EXPECT_EQ(read_all(&count, &r, message), RECORDS_END);
    EXPECT_EQ(count, 4);
    EXPECT_EQ(r.bytes, 700); /* filled in from the allocation */
    EXPECT_EQ(r.stream, 0);
}

CASE(a_device_that_is_not_named_is_that_of_the_block)
{
    unsigned count;
    struct record r;
    char message[1024];
    put_text("t_us,op,id,bytes,device\n0,a,0,700,3\n0,u,0,,\n1,f,0,,\n");
    EXPECT_EQ(read_all(&count, &r, message), RECORDS_END);
    EXPECT_EQ(count, 3);
    EXPECT_EQ(r.device, 3);
}

CASE(what_a_trace_of_ours_tells_besides)
{
    struct record r;
    put_text("t_us,op,id,bytes,tag,address,label,reserved\n0,a,1,512,7,4096,a%2Cb,0\n0,f,1,,,,,\n0,a,2,512,7,0,other,9\n0,a,3,512,8,,,\n");
    struct records_reader *reader = records_open(path);
    REQUIRE(reader != NULL);
    EXPECT_EQ(records_next(reader, &r), RECORDS_ONE);
    EXPECT(r.address == 4096 && r.reserved == 0);
    EXPECT(records_tell(reader, "label") && records_tell(reader, "op") && !records_tell(reader, "stream") && !records_tell(reader, "none"));
    EXPECT_EQ(records_next(reader, &r), RECORDS_ONE);
    EXPECT(r.address == RECORD_NOT_TOLD && r.reserved == RECORD_NOT_TOLD);
    EXPECT_EQ(records_next(reader, &r), RECORDS_ONE);
    EXPECT(r.address == 0 && r.reserved == 9);
    EXPECT_EQ(records_next(reader, &r), RECORDS_ONE);
    EXPECT_TEXT_EQ(records_label(reader, 7), "a%2Cb");
    EXPECT(!records_label(reader, 8) && !records_label(reader, RECORD_STREAMS_MAX));
    EXPECT_EQ(records_next(reader, &r), RECORDS_END);
    records_close(reader);
}

/* Records of any kind count: those that say little are the ones of which most fit into a small file. */
CASE(no_more_records_than_asked_for)
{
    struct record r;
    put_text(HEAD "0,a,1,512\n0,u,1,\n0,s,,\n");
    for (uint64_t most = 2; most <= 3; most++) {
        struct records_reader *reader = records_open(path);
        REQUIRE(reader != NULL);
        records_limit(reader, most);
        EXPECT_EQ(records_next(reader, &r), RECORDS_ONE);
        EXPECT_EQ(records_next(reader, &r), RECORDS_ONE);
        EXPECT_EQ(records_next(reader, &r), most == 2 ? RECORDS_BROKEN : RECORDS_ONE);
        EXPECT(most == 3 || strstr(records_message(reader), ":4: more than 2 records: take a part of it"));
        EXPECT_EQ(records_next(reader, &r), most == 2 ? RECORDS_BROKEN : RECORDS_END);
        records_close(reader);
    }
}

CASE(an_id_may_live_again_and_blocks_are_reused)
{
    unsigned count;
    struct record r;
    char message[1024];
    put_text(HEAD "0,a,5,1\n0,f,5,1\n0,a,18014398509481983,1\n0,a,5,2\n0,f,18014398509481983,1\n0,f,5,2\n");
    EXPECT_EQ(read_all(&count, &r, message), RECORDS_END);
    EXPECT_EQ(count, 6);
    EXPECT(r.block == 1 || r.block == 2);
}

CASE(headers_that_are_none)
{
    expect_broken("", 1, "empty");
    expect_broken("\n", 1, "column t_us is missing");
    expect_broken("op,id,bytes\n", 1, "column t_us is missing");
    expect_broken("t_us,op,id\n0,a,1\n", 1, "column bytes is missing");
    expect_broken("t_us,op,id,bytes,id\n", 1, "column id is there twice");
    expect_broken("0,a,1,512\n", 1, "missing");
    char many[1024] = "t_us,op,id,bytes";
    for (int i = 0; i < 100; i++)
        strcat(many, ",x");
    expect_broken(many, 1, "more than 64 columns");
}

CASE(lines_that_are_no_records)
{
    expect_broken(HEAD "0,a,1\n", 2, "fewer columns");
    expect_broken(HEAD "0,a,1,512,9\n", 2, "more columns");
    expect_broken(HEAD "0,a,1,512\n\n", 3, "fewer columns");
    expect_broken(HEAD "0,x,1,512\n", 2, "op is \"x\"");
    expect_broken(HEAD "0,af,1,512\n", 2, "op is \"af\"");
    expect_broken(HEAD "0,,1,512\n", 2, "op is \"\"");
    expect_broken(HEAD "0,A,1,512\n", 2, "op is \"A\"");
    expect_broken(HEAD "0, a,1,512\n", 2, "op is \" a\"");
    expect_broken(HEAD "\"0\",a,1,512\n", 2, "t_us");
}

CASE(numbers_that_are_none)
{
    expect_broken(HEAD "-1,a,1,512\n", 2, "t_us");
    expect_broken(HEAD ",a,1,512\n", 2, "t_us");
    expect_broken(HEAD "1.,a,1,512\n", 2, "t_us");
    expect_broken(HEAD ".5,a,1,512\n", 2, "t_us");
    expect_broken(HEAD "1e3,a,1,512\n", 2, "t_us");
    expect_broken(HEAD "1.5.5,a,1,512\n", 2, "t_us");
    expect_broken(HEAD "18446744073709551,a,1,512\n", 2, "t_us");
    expect_broken(HEAD "nan,a,1,512\n", 2, "t_us");
    expect_broken(HEAD "0,a,-1,512\n", 2, "id is \"-1\"");
    expect_broken(HEAD "0,a,,512\n", 2, "id is \"\"");
    expect_broken(HEAD "0,a,18014398509481984,512\n", 2, "id is");
    expect_broken(HEAD "0,a,1,-512\n", 2, "bytes is \"-512\"");
    expect_broken(HEAD "0,a,1,\n", 2, "bytes is \"\"");
    expect_broken(HEAD "0,a,1,9223372036854775808\n", 2, "bytes is");
    expect_broken(HEAD "0,a,1,99999999999999999999999\n", 2, "bytes is");
    expect_broken(HEAD "0,a,1,1.5\n", 2, "bytes is");
    expect_broken("t_us,op,id,bytes,stream\n0,a,1,512,65536\n", 2, "stream is");
    expect_broken("t_us,op,id,bytes,device\n0,a,1,512,64\n", 2, "device is");
    expect_broken("t_us,op,id,bytes,tag\n0,a,1,512,x\n", 2, "tag is");
}

CASE(lives_that_cannot_be)
{
    expect_broken(HEAD "0,a,1,512\n0,a,1,512\n", 3, "id 1 is allocated again");
    expect_broken(HEAD "0,f,1,512\n", 2, "id 1 is not live");
    expect_broken(HEAD "0,a,1,512\n0,f,1,512\n0,f,1,512\n", 4, "id 1 is not live");
    expect_broken(HEAD "0,u,9,512\n", 2, "id 9 is not live");
    expect_broken(HEAD "0,a,1,512\n0,f,1,513\n", 3, "512 bytes, not 513");
    expect_broken(HEAD "5,a,1,512\n4,f,1,512\n", 3, "time goes back");
    expect_broken("t_us,op,id,bytes,device\n0,a,1,512,1\n0,f,1,512,0\n", 3, "device 1, not 0");
    expect_broken(HEAD "0,a,1,0\n", 2, "0 bytes");
    expect_broken(HEAD "0,a,1,4611686018427387000\n0,a,2,904\n", 3, "more than 2^62 bytes");
    expect_broken("t_us,op,id,bytes,address\n0,a,1,512,0x7f\n", 2, "address is \"0x7f\"");
    expect_broken("t_us,op,id,bytes,reserved\n0,a,1,512,-1\n", 2, "reserved is \"-1\"");
    expect_broken("t_us,op,id,bytes,label,label\n", 1, "column label is there twice");
}

CASE(files_that_are_no_text)
{
    static const char with_zero[] = HEAD "0,a,1,5\0" "12\n";
    unsigned count;
    struct record last;
    char message[1024];
    put_file(with_zero, sizeof(with_zero) - 1);
    EXPECT_EQ(read_all(&count, &last, message), RECORDS_BROKEN);
    EXPECT(strstr(message, ":2: this is not text") != NULL);

    static char longer[200000];
    memset(longer, '1', sizeof(longer) - 1);
    memcpy(longer, HEAD, strlen(HEAD));
    put_text(longer);
    EXPECT_EQ(read_all(&count, &last, message), RECORDS_BROKEN);
    EXPECT(strstr(message, ":2: the line is longer") != NULL);
}

static void expect_unreadable(const char *where, const char *reason)
{
    struct record record;
    struct records_reader *reader = records_open(where);
    REQUIRE(reader != NULL);
    EXPECT_EQ(records_next(reader, &record), RECORDS_BROKEN);
    EXPECT(strstr(records_message(reader), reason) != NULL);
    records_close(reader);
}

CASE(files_that_cannot_be_read)
{
    expect_unreadable("/no/such/file", "/no/such/file:1: cannot be opened: No such file");
    expect_unreadable("/", "directory");
}

/* ---------------------------------------------------------------------------------------------------------- written and read */

static struct record record_number(uint32_t i)
{
    static const enum record_op ops[] = {RECORD_ALLOC, RECORD_USE, RECORD_FREE, RECORD_STEP};
    enum record_op op = ops[i % 4];
    bool is_step = op == RECORD_STEP;
    return (struct record){.t_ns = i * 1234567ull, .op = op, .id = is_step ? 0 : i / 4 + (1ull << 50),
                           .bytes = is_step ? 0 : i / 4 * 1000003ull + 1, .stream = i % 65536, .device = i / 4 % 64, .tag = i % 100};
}

static void write_records(uint32_t count)
{
    struct records_writer *writer = records_create(path);
    REQUIRE(writer != NULL);
    for (uint32_t i = 0; i < count; i++) {
        struct record r = record_number(i);
        records_write(writer, &r);
    }
    EXPECT(records_finish(writer));
}

static void expect_same_records(uint32_t count)
{
    struct records_reader *reader = records_open(path);
    struct record got;
    unsigned different = 0;
    for (uint32_t i = 0; i < count; i++) {
        REQUIRE_EQ(records_next(reader, &got), RECORDS_ONE);
        struct record put = record_number(i);
        different += got.t_ns != put.t_ns || got.op != put.op || got.id != put.id || got.bytes != put.bytes || got.stream != put.stream ||
                     got.device != put.device || got.tag != put.tag;
    }
    EXPECT_EQ(different, 0);
    EXPECT_EQ(records_next(reader, &got), RECORDS_END);
    EXPECT_EQ(records_blocks(reader), 2); /* one block at a time is live */
    records_close(reader);
}

CASE(what_is_written_is_read)
{
    write_records(40000);
    expect_same_records(40000);
    path[strlen(path) - 3] = 0; /* no .gz: plain */
    write_records(4000);
    expect_same_records(4000);
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL);
    EXPECT_EQ(getc(file), 't');
    fclose(file);
}

static size_t read_file(char *contents, size_t room)
{
    FILE *file = fopen(path, "rb");
    REQUIRE(file != NULL);
    size_t size = fread(contents, 1, room, file);
    fclose(file);
    return size;
}

/* Wherever a gzip file is cut or damaged, no half of it is taken for a whole trace. */
CASE(damaged_gzip_files_are_refused)
{
    static char contents[1 << 20];
    unsigned count;
    struct record last;
    char message[1024];
    write_records(2000);
    size_t size = read_file(contents, sizeof(contents));
    REQUIRE(size > 1000 && size < sizeof(contents));
    for (size_t cut = 20; cut < size; cut += size / 50) {
        put_file(contents, cut);
        EXPECT_EQ(read_all(&count, &last, message), RECORDS_BROKEN);
        EXPECT(strstr(message, "ends too early") != NULL);
    }
    for (size_t at = 20; at < size; at += size / 50) {
        contents[at] ^= 0x10;
        put_file(contents, size);
        EXPECT_EQ(read_all(&count, &last, message), RECORDS_BROKEN);
        contents[at] ^= 0x10;
    }
    put_file(contents, size);
    EXPECT_EQ(read_all(&count, &last, message), RECORDS_END);
}

CASE(a_full_disk_shows_at_the_end)
{
    struct records_writer *writer = records_create("/dev/full");
    REQUIRE(writer != NULL);
    for (uint32_t i = 0; i < 10000; i++) {
        struct record r = record_number(i);
        records_write(writer, &r);
    }
    EXPECT(!records_finish(writer));
    EXPECT(records_create("/no/such/folder/x.csv") == NULL);
}

SUITE_MAIN_AROUND("records", make_path, remove_file)
