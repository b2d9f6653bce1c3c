/* Load on one connection: sends pre-encoded requests, keeps some in flight, checks and times every response.
 *
 * usage: wire_load HOST PORT FILE IN_FLIGHT MAX_REQUESTS MAX_SECONDS RATE ERROR_OFFSET RESPONSE_BYTES_MIN
 *
 * FILE holds whole request frames (length prefix included), sent in turn and from the start again; only the
 * correlation id is written into them. RATE is requests per second, 0 for as fast as answers come. The int16 at
 * ERROR_OFFSET of every response frame must be 0, and a frame no smaller than RESPONSE_BYTES_MIN.
 * SIGTERM ends it early, after the answers that are due. Prints one JSON object. A response that does not fit ends the program with status 1 and the reason on stderr.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define COALESCE_BYTES 65536        /* frames below this are gathered into one send */
#define RECEIVE_BYTES (512 * 1024)
#define HEAD_BYTES 512              /* of a response that are looked at */
#define CORRELATION_OFFSET 8        /* in a request: length 4, api key 2, version 2 */

static void fail(const char *what) {
    fprintf(stderr, "wire_load: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint32_t big_endian_32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

struct frame { uint8_t *bytes; size_t size; };

static struct frame *frames;
static volatile sig_atomic_t stopped;
static size_t frame_count;

static void stop(int number) {
    (void)number;
    stopped = 1;
}

static void load_frames(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail(path);
    size_t size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(size);
    if (!bytes || fread(bytes, 1, size, file) != size) fail(path);
    fclose(file);
    size_t capacity = 0;
    for (size_t at = 0; at < size; frame_count++) {
        if (frame_count == capacity) {
            capacity = capacity ? capacity * 2 : 64;
            frames = realloc(frames, capacity * sizeof *frames);
            if (!frames) fail("out of memory");
        }
        size_t frame_size = 4 + (size_t)big_endian_32(bytes + at);
        if (at + frame_size > size) { errno = 0; fail("a request frame runs past the end of the file"); }
        frames[frame_count] = (struct frame){bytes + at, frame_size};
        at += frame_size;
    }
    if (!frame_count) { errno = 0; fail("no request in the file"); }
}

static int connect_to(const char *host, const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    int connection = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (connection < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1) fail("address");
    if (connect(connection, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return connection;
}

static void send_all(int connection, const uint8_t *bytes, size_t size) {
    while (size) {
        ssize_t sent = send(connection, bytes, size, MSG_NOSIGNAL);
        if (sent < 0) { if (errno == EINTR) continue; fail("send"); }
        bytes += sent;
        size -= (size_t)sent;
    }
}

int main(int count, char **argument) {
    if (count != 10) { errno = 0; fail("wrong number of arguments, see the head of wire_load.c"); }
    load_frames(argument[3]);
    const uint64_t in_flight_max = strtoull(argument[4], NULL, 10);
    const uint64_t requests_max = strtoull(argument[5], NULL, 10);
    const uint64_t duration_ns = (uint64_t)(atof(argument[6]) * 1e9);
    const double rate = atof(argument[7]);
    const size_t error_offset = strtoull(argument[8], NULL, 10);
    const size_t response_bytes_min = strtoull(argument[9], NULL, 10);
    const size_t head_size = error_offset + 2;
    const uint64_t interval_ns = rate > 0 ? (uint64_t)(1e9 / rate) : 0;
    if (head_size > HEAD_BYTES || !in_flight_max) { errno = 0; fail("bad error offset or in-flight count"); }
    signal(SIGTERM, stop);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    int connection = connect_to(argument[1], argument[2]);

    static uint8_t gathered[COALESCE_BYTES * 2], received[RECEIVE_BYTES], head[HEAD_BYTES];
    uint64_t *started_ns = calloc(in_flight_max, sizeof *started_ns);
    uint64_t *latencies_ns = NULL, capacity = 0, sent = 0, answered = 0, sent_bytes = 0, received_bytes = 0;
    size_t frame_size = 0, frame_seen = 0;
    const uint64_t begin_ns = now_ns();
    uint64_t last_ns = begin_ns, due_ns = begin_ns;
    int sending = 1;

    while (sending || answered < sent) {
        size_t gathered_size = 0;
        uint64_t at_ns = now_ns();
        int paused = 0;
        while (sending && sent - answered < in_flight_max) {
            if (stopped || sent >= requests_max || at_ns - begin_ns >= duration_ns) { sending = 0; break; }
            if (interval_ns && at_ns < due_ns) { paused = 1; break; }
            struct frame *next = &frames[sent % frame_count];
            uint32_t correlation = htonl((uint32_t)sent);
            memcpy(next->bytes + CORRELATION_OFFSET, &correlation, 4);
            /* Late for its turn because answers were late: the wait counts, or slow answers would hide it. */
            started_ns[sent % in_flight_max] = interval_ns && at_ns - due_ns > interval_ns ? due_ns : at_ns;
            due_ns += interval_ns;
            sent++;
            sent_bytes += next->size;
            if (next->size < COALESCE_BYTES) {
                memcpy(gathered + gathered_size, next->bytes, next->size);
                gathered_size += next->size;
                if (gathered_size >= COALESCE_BYTES) { send_all(connection, gathered, gathered_size); gathered_size = 0; }
            } else {
                if (gathered_size) { send_all(connection, gathered, gathered_size); gathered_size = 0; }
                send_all(connection, next->bytes, next->size);
                at_ns = now_ns();
            }
        }
        if (gathered_size) send_all(connection, gathered, gathered_size);
        if (answered == sent && !paused) continue;
        if (paused) {
            struct pollfd readable = {.fd = connection, .events = POLLIN};
            uint64_t wait_ns = due_ns - at_ns;
            struct timespec wait = {(time_t)(wait_ns / 1000000000u), (long)(wait_ns % 1000000000u)};
            int ready = ppoll(&readable, 1, &wait, NULL);
            if (ready < 0 && errno != EINTR) fail("poll");
            if (ready <= 0) continue;
        }
        ssize_t size = recv(connection, received, sizeof received, 0);
        if (size < 0) { if (errno == EINTR) continue; fail("receive"); }
        if (size == 0) { errno = 0; fail("the broker closed the connection"); }
        last_ns = now_ns();
        received_bytes += (uint64_t)size;
        for (size_t at = 0; at < (size_t)size;) {
            size_t rest = (size_t)size - at, take;
            if (frame_seen < head_size && (frame_seen < 4 || frame_seen < frame_size)) {
                size_t wanted = (frame_seen < 4 ? 4 : head_size < frame_size ? head_size : frame_size) - frame_seen;
                take = rest < wanted ? rest : wanted;
                memcpy(head + frame_seen, received + at, take);
            } else {
                take = rest < frame_size - frame_seen ? rest : frame_size - frame_seen;
            }
            at += take;
            frame_seen += take;
            if (frame_seen == 4) frame_size = 4 + (size_t)big_endian_32(head);
            if (frame_seen < 4 || frame_seen < frame_size) continue;
            errno = 0;
            if (frame_size < head_size || frame_size < response_bytes_min) fail("a response is too short");
            if (big_endian_32(head + 4) != (uint32_t)answered) fail("a response out of order");
            int error = (int16_t)(head[error_offset] << 8 | head[error_offset + 1]);
            if (error) { fprintf(stderr, "wire_load: error code %d in a response\n", error); return 1; }
            if (answered == capacity) {
                capacity = capacity ? capacity * 2 : 65536;
                latencies_ns = realloc(latencies_ns, capacity * sizeof *latencies_ns);
                if (!latencies_ns) fail("out of memory");
            }
            latencies_ns[answered] = last_ns - started_ns[answered % in_flight_max];
            answered++;
            frame_seen = frame_size = 0;
        }
    }
    if (!answered) { errno = 0; fail("nothing was sent"); }
    qsort(latencies_ns, answered, sizeof *latencies_ns, ascending);
    printf("{\"requests\": %llu, \"seconds\": %.6f, \"sent_bytes\": %llu, \"received_bytes\": %llu, "
           "\"p50_us\": %.2f, \"p99_us\": %.2f, \"p999_us\": %.2f, \"max_us\": %.2f}\n",
           (unsigned long long)answered, (double)(last_ns - begin_ns) / 1e9, (unsigned long long)sent_bytes,
           (unsigned long long)received_bytes, (double)latencies_ns[answered / 2] / 1e3,
           (double)latencies_ns[answered * 99 / 100] / 1e3, (double)latencies_ns[answered * 999 / 1000] / 1e3,
           (double)latencies_ns[answered - 1] / 1e3);
    return 0;
}
