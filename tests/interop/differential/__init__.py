"""The same scripted requests to Apache Kafka and to Culver, and every difference in the answers."""
