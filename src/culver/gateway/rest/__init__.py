"""The conventions of Kafka's REST proxy, version 2: producing, consuming and looking at topics."""
