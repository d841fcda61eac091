# SPDX-License-Identifier: MIT OR Apache-2.0
"""The API of an appliance, for the modules of this collection."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

import json
import time

from ansible.module_utils.common.text.converters import to_bytes, to_native
from ansible.module_utils.six.moves.http_client import HTTPException
from ansible.module_utils.six.moves.urllib.error import HTTPError, URLError
from ansible.module_utils.six.moves.urllib.parse import quote
from ansible.module_utils.urls import open_url

ARGUMENTS = dict(
    url=dict(type="str", required=True),
    token=dict(type="str", no_log=True),
    ca_path=dict(type="path"),
    client_cert=dict(type="path"),
    client_key=dict(type="path", no_log=False),
    timeout=dict(type="int", default=20),
)

# An appliance that has no free connection, and one that checks no tokens for a second after a wrong one.
BUSY = (429, 503)


class ApiError(Exception):
    """A refusal of the appliance, or no answer. `status` is 0 without an answer."""

    def __init__(self, status, reason, body=None):
        super(ApiError, self).__init__(reason)
        self.status = status
        self.body = body or {}


class Api(object):
    """Requests to one appliance."""

    def __init__(self, params, url=None):
        self.params = params
        self.url = (url or params["url"]).rstrip("/")

    def request(self, method, path, body=None, kind="application/json", etag=None):
        """Sends a request below /api/v1; returns the text of the answer and its entity tag."""
        return self._send(method, "/api/v1/" + path, body, kind, etag)

    def metrics(self):
        """The metrics without labels, by name."""
        text, dummy = self._send("GET", "/metrics", None, None, None)
        lines = (line.split(" ") for line in text.splitlines() if not line.startswith("#"))
        return dict((words[0], words[1]) for words in lines if len(words) == 2)

    def json(self, method, path, body=None, etag=None):
        text, dummy = self.request(method, path, body, etag=etag)
        return parsed(text)

    def command(self, line):
        """Executes a command of the console, and returns its output."""
        answer = self.json("POST", "commands", {"command": line})
        if answer.get("error"):
            raise ApiError(400, "%s: %s" % (line, answer["error"]), answer)
        return answer.get("output", "")

    def _send(self, method, path, body, kind, etag):
        headers = {}
        if self.params["token"]:
            headers["Authorization"] = "Bearer " + self.params["token"]
        if etag:
            headers["If-Match"] = etag
        data = None
        if body is not None:
            headers["Content-Type"] = kind
            data = to_bytes(body if kind != "application/json" else json.dumps(body))
        what = "%s %s%s" % (method, self.url, path)
        for attempt in range(5):
            try:
                answer = open_url(
                    self.url + path, method=method, data=data, headers=headers,
                    timeout=self.params["timeout"], ca_path=self.params["ca_path"],
                    client_cert=self.params["client_cert"], client_key=self.params["client_key"],
                    http_agent="ansible-isthmus",
                )
                return to_native(answer.read()), answer.headers.get("ETag")
            except HTTPError as error:
                text = to_native(error.read())
                if error.code in BUSY and attempt < 4:
                    time.sleep(1.5)
                    continue
                body = parsed(text)
                why = body.get("error") or text.strip() or error.reason
                raise ApiError(error.code, "%s: %d: %s" % (what, error.code, why), body)
            except (HTTPException, URLError, OSError, ValueError) as error:
                raise ApiError(0, "%s: no answer: %s" % (what, error))


def parsed(text):
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, (dict, list)) else {}


def part(name):
    """A name as a part of a path."""
    return quote(name, safe="")


def section(resources):
    """The key of a list in the document, by its name in paths."""
    return resources[:-1] if resources.endswith("s") and resources != "usnic" else resources


def lines(changes, side):
    """Changes as text for --diff, before or after them."""
    shown = []
    for change in changes:
        value = change.get(side)
        if value not in (None, ""):
            shown.append("%s = %s\n" % (change["path"], value))
    return "".join(shown)


def diff(changes):
    return dict(before=lines(changes, "before"), after=lines(changes, "after"))


class Candidate(object):
    """The candidate while a module has it. It is dropped at the end unless it was committed."""

    def __init__(self, api, take_over=False):
        self.api = api
        try:
            others = api.json("GET", "config/compare")
        except ApiError as error:
            if error.status != 404:
                raise
            others = None
        if others and not take_over:
            raise ApiError(
                409,
                "somebody edits the candidate: %s; commit or discard it, or take_over: true"
                % ", ".join(change["path"] for change in others),
            )
        if others is not None:
            api.request("DELETE", "config/candidate")

    def edit(self, method, body, kind):
        """Changes the candidate; returns the changes against the running configuration."""
        dummy, etag = self.api.request("GET", "config/candidate")
        dummy, self.etag = self.api.request(method, "config/candidate", body, kind, etag)
        return self.api.json("GET", "config/compare")

    def drop(self):
        self.api.request("DELETE", "config/candidate")
