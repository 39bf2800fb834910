"""Settings are values: one frozen tree, loaded once, passed to whatever needs it."""

from calve.settings.check import component_levels
from calve.settings.keys import hidden_texts, hide_secrets
from calve.settings.load import (
    LoadedSettings,
    complete,
    environment_server,
    environment_token,
    load_settings,
)
from calve.settings.secret import (
    MASK,
    Properties,
    Secret,
    SecretUrl,
    looks_secret,
    mask_texts,
    mask_url,
)
from calve.settings.tree import (
    CatalogSettings,
    LogSettings,
    PoolSettings,
    RetrySettings,
    Settings,
    SparkSettings,
    StorageSettings,
)

__all__ = [
    "MASK",
    "CatalogSettings",
    "LoadedSettings",
    "LogSettings",
    "PoolSettings",
    "Properties",
    "RetrySettings",
    "Secret",
    "SecretUrl",
    "Settings",
    "SparkSettings",
    "StorageSettings",
    "complete",
    "component_levels",
    "environment_server",
    "environment_token",
    "hidden_texts",
    "hide_secrets",
    "load_settings",
    "looks_secret",
    "mask_texts",
    "mask_url",
]
