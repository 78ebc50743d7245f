"""The settings of the example; the database comes from DATABASE_URL."""

import os
from urllib.parse import unquote, urlsplit

_database = urlsplit(os.environ.get("DATABASE_URL", "postgresql://postgres@127.0.0.1/shop"))
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database.path[1:],
        "USER": unquote(_database.username or ""),
        "PASSWORD": unquote(_database.password or ""),
        "HOST": _database.hostname or "",
        "PORT": _database.port or "",
        "ATOMIC_REQUESTS": True,  # A view's rows and its events commit together.
        "CONN_MAX_AGE": 60,  # Else every delivery would connect anew.
    }
}
INSTALLED_APPS = ["postroad.django", "shop"]
ROOT_URLCONF = "shop.views"
SECRET_KEY = os.environ.get("SECRET_KEY", "only for the example")
ALLOWED_HOSTS = ["*"]
TIME_ZONE = "UTC"  # Else Django has every log of the process in its own default, Chicago's.
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
