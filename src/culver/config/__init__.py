"""Settings of brokers, topics and the gateway: declared, checked, loaded, described, changed and documented.

`culver.config.describe` and `culver.config.alter` answer the protocol's configuration requests;
`culver.config.reference` makes the reference page. They are imported where they are used.
"""

from culver.config.address import parse_address
from culver.config.broker import BrokerConfig
from culver.config.gateway import GatewayConfig
from culver.config.setting import ConfigType, Setting, Settings
from culver.config.sources import environment_name, load_broker_config, load_gateway_settings
from culver.config.topic import TopicConfig, validate_topic_setting

__all__ = [
    "BrokerConfig",
    "ConfigType",
    "GatewayConfig",
    "Setting",
    "Settings",
    "TopicConfig",
    "environment_name",
    "load_broker_config",
    "load_gateway_settings",
    "parse_address",
    "validate_topic_setting",
]
