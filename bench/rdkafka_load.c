/* The load of a real client: librdkafka with its defaults, producing or consuming one partition.
 *
 * usage: rdkafka_load produce|consume BOOTSTRAP TOPIC MESSAGES MESSAGE_BYTES
 *
 * Prints one JSON object: messages and seconds, connecting left out (produce counts from the first acknowledged
 * message, consume from the first received). Ends with status 1 and the reason on stderr when anything fails.
 */
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CONSUME_BATCH 10000
#define IDLE_MS_MAX 20000

static long delivered, failed;

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void fail(const char *what, const char *why) {
    fprintf(stderr, "rdkafka_load: %s: %s\n", what, why);
    exit(1);
}

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    (void)opaque;
    if (message->err) failed++;
    else delivered++;
}

static void set(rd_kafka_conf_t *configuration, const char *name, const char *value) {
    char why[512];
    if (rd_kafka_conf_set(configuration, name, value, why, sizeof why) != RD_KAFKA_CONF_OK) fail(name, why);
}

static rd_kafka_t *connect_client(rd_kafka_type_t type, rd_kafka_conf_t *configuration, const char *bootstrap) {
    char why[512];
    set(configuration, "bootstrap.servers", bootstrap);
    rd_kafka_t *client = rd_kafka_new(type, configuration, why, sizeof why);
    if (!client) fail("client", why);
    return client;
}

static void report(long messages, double seconds) {
    printf("{\"messages\": %ld, \"seconds\": %.6f}\n", messages, seconds);
}

static void produce(const char *bootstrap, const char *topic, long messages, size_t size) {
    rd_kafka_conf_t *configuration = rd_kafka_conf_new();
    set(configuration, "queue.buffering.max.messages", "1000000");
    rd_kafka_conf_set_dr_msg_cb(configuration, on_delivery);
    rd_kafka_t *client = connect_client(RD_KAFKA_PRODUCER, configuration, bootstrap);
    rd_kafka_topic_t *handle = rd_kafka_topic_new(client, topic, NULL);
    char *payload = malloc(size);
    if (!payload || !handle) fail("topic", topic);
    memset(payload, 'x', size);
    /* One message through first: connecting, metadata and leadership are not what is timed. */
    if (rd_kafka_produce(handle, 0, RD_KAFKA_MSG_F_COPY, payload, size, NULL, 0, NULL)) fail("produce", "first message");
    if (rd_kafka_flush(client, IDLE_MS_MAX)) fail("produce", "first message not delivered");
    delivered = 0;
    double begin = now_seconds();
    for (long i = 0; i < messages;) {
        if (rd_kafka_produce(handle, 0, RD_KAFKA_MSG_F_COPY, payload, size, NULL, 0, NULL) == 0) {
            i++;
            if ((i & 1023) == 0) rd_kafka_poll(client, 0);
        } else if (rd_kafka_last_error() == RD_KAFKA_RESP_ERR__QUEUE_FULL) {
            rd_kafka_poll(client, 1);
        } else {
            fail("produce", rd_kafka_err2str(rd_kafka_last_error()));
        }
    }
    if (rd_kafka_flush(client, 120000)) fail("produce", "not all delivered");
    double end = now_seconds();
    if (failed || delivered != messages) fail("produce", "deliveries failed");
    report(messages, end - begin);
    rd_kafka_topic_destroy(handle);
    rd_kafka_destroy(client);
    free(payload);
}

static void consume(const char *bootstrap, const char *topic, long messages, size_t size) {
    rd_kafka_conf_t *configuration = rd_kafka_conf_new();
    rd_kafka_t *client = connect_client(RD_KAFKA_CONSUMER, configuration, bootstrap);
    rd_kafka_topic_t *handle = rd_kafka_topic_new(client, topic, NULL);
    rd_kafka_message_t **batch = malloc(CONSUME_BATCH * sizeof *batch);
    if (!batch || !handle || rd_kafka_consume_start(handle, 0, RD_KAFKA_OFFSET_BEGINNING)) fail("topic", topic);
    long consumed = 0, first = 0;
    double begin = 0, end = 0;
    while (consumed < messages) {
        /* The call waits until it has all it was asked for, so it is never asked for more than will come. */
        size_t wanted = messages - consumed < CONSUME_BATCH ? (size_t)(messages - consumed) : CONSUME_BATCH;
        ssize_t got = rd_kafka_consume_batch(handle, 0, IDLE_MS_MAX, batch, wanted);
        if (got <= 0) fail("consume", "nothing more came");
        for (ssize_t i = 0; i < got; i++) {
            if (batch[i]->err) fail("consume", rd_kafka_message_errstr(batch[i]));
            if (batch[i]->len != size) fail("consume", "a message of another size");
            rd_kafka_message_destroy(batch[i]);
        }
        consumed += got;
        end = now_seconds();
        if (!first) { first = consumed; begin = end; }
    }
    report(consumed - first, end - begin);
    rd_kafka_consume_stop(handle, 0);
    rd_kafka_topic_destroy(handle);
    rd_kafka_destroy(client);
    free(batch);
}

int main(int count, char **argument) {
    if (count != 6) fail("usage", "rdkafka_load produce|consume BOOTSTRAP TOPIC MESSAGES MESSAGE_BYTES");
    long messages = atol(argument[4]);
    size_t size = (size_t)atol(argument[5]);
    if (strcmp(argument[1], "produce") == 0) produce(argument[2], argument[3], messages, size);
    else consume(argument[2], argument[3], messages, size);
    return 0;
}
