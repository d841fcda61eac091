#!/usr/bin/python
# SPDX-License-Identifier: MIT OR Apache-2.0

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: config
short_description: Configures an Isthmus appliance
description:
  - Edits the candidate, commits it if it changes anything, and saves.
  - The appliance itself compares, so a value may be written in any form that it accepts.
options:
  config:
    description: A part that is merged into the configuration (RFC 7396). A list replaces the list as a whole.
    type: dict
  document:
    description: A whole document in TOML, which replaces the configuration.
    type: str
  confirm_minutes:
    description:
      - Commits on trial. The module confirms at I(confirm_url); if the appliance does not answer there, it takes the
        commit back after this time by itself.
    type: int
  reboot:
    description:
      - With I(confirm_minutes). The appliance reboots and tries the configuration, for keys that need a reboot; without a
        confirmation in time it reboots to the saved one. It needs a config disk.
    type: bool
    default: false
  confirm_url:
    description: Address of the appliance after the commit, if it changes. Default is I(url).
    type: str
  comment:
    description: Comment of the revision.
    type: str
    default: ansible
  accept_cuts:
    description: Commits also if that cuts somebody off. Without it the module fails with the list.
    type: bool
    default: false
  take_over:
    description: Drops a candidate that somebody else edits. Without it the module fails.
    type: bool
    default: false
  save:
    description: Saves the running configuration, if it is unsaved.
    type: bool
    default: true
extends_documentation_fragment: isthmus.gateway.connection
author: The Isthmus authors
"""

EXAMPLES = r"""
- isthmus.gateway.config:
    url: "http://{{ ansible_host }}"
    token: "{{ isthmus_token }}"
    config:
      system: {hostname: "{{ inventory_hostname }}", ntp: [ntp.example.net]}
    confirm_minutes: 2
"""

RETURN = r"""
changes:
  description: Keys with their values before and after. Secrets are not shown.
  type: list
  returned: always
notes:
  description: What the appliance says about the commit, such as keys that need a reboot.
  type: list
  returned: if committed
saved:
  description: Whether the configuration was saved.
  type: bool
  returned: always
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.isthmus.gateway.plugins.module_utils.api import (
    ARGUMENTS, Api, ApiError, Candidate, diff,
)


def edit(api, params):
    """Puts what is wanted into the candidate. Returns it and the changes; without changes it is dropped."""
    candidate = Candidate(api, params["take_over"])
    if params["document"] is not None:
        changes = candidate.edit("PUT", params["document"], "application/toml")
    else:
        changes = candidate.edit("PATCH", params["config"] or {}, "application/json")
    if not changes:
        candidate.drop()
    return candidate, changes


def confirm(params, until):
    """Confirms the commit as soon as the appliance answers."""
    api = Api(dict(params, timeout=min(params["timeout"], 5)), params["confirm_url"])
    while True:
        try:
            # Before the reboot there is no trial yet.
            if not params["reboot"] or api.metrics().get("isthmus_config_trial") == "1":
                return api.request("POST", "config/confirm")
            why = ApiError(0, "the appliance does not try the configuration")
        except ApiError as error:
            if error.status == 409:
                raise ApiError(409, "the commit was taken back before it was confirmed: %s" % error)
            why = error
        if time.time() > until:
            raise ApiError(
                why.status,
                "the appliance does not answer after the commit, and takes it back after %d minutes: %s"
                % (params["confirm_minutes"], why),
            )
        time.sleep(1)


def commit(api, params, candidate):
    """Commits and confirms; returns the notes of the appliance."""
    terms = dict(comment=params["comment"], yes=params["accept_cuts"])
    minutes = params["confirm_minutes"]
    if minutes:
        terms.update(confirm_minutes=minutes, reboot=params["reboot"])
    notes = []
    try:
        notes = api.json("POST", "config/commit", terms, etag=candidate.etag).get("notes", [])
    except ApiError as error:
        # The answer may be lost with the address that the commit has changed.
        if error.status != 0 or not minutes:
            if error.status:
                candidate.drop()
            cuts = error.body.get("cuts")
            raise ApiError(error.status, "%s%s" % (error, ": " + "; ".join(cuts) if cuts else ""))
    if minutes:
        # A connection attempt may take five seconds longer. A reboot takes a while before the time begins.
        confirm(params, time.time() + 60 * minutes - (0 if params["reboot"] else 10))
    return notes


def main():
    arguments = dict(
        config=dict(type="dict"),
        document=dict(type="str"),
        confirm_minutes=dict(type="int"),
        confirm_url=dict(type="str"),
        reboot=dict(type="bool", default=False),
        comment=dict(type="str", default="ansible"),
        accept_cuts=dict(type="bool", default=False),
        take_over=dict(type="bool", default=False),
        save=dict(type="bool", default=True),
        **ARGUMENTS
    )
    module = AnsibleModule(
        arguments,
        mutually_exclusive=[("config", "document")],
        required_one_of=[("config", "document")],
        required_if=[("reboot", True, ["confirm_minutes"])],
        supports_check_mode=True,
    )
    params = module.params
    api = Api(params)
    result = dict(changed=False, saved=False)
    try:
        candidate, changes = edit(api, params)
        result.update(changes=changes, diff=diff(changes), changed=bool(changes))
        if changes and module.check_mode:
            candidate.drop()
        elif changes:
            result["notes"] = commit(api, params, candidate)
        after = Api(params, params["confirm_url"] if changes and not module.check_mode else None)
        # The confirmation after a reboot saves.
        changes_unsaved = changes and (module.check_mode or not params["reboot"])
        unsaved = params["save"] and (
            changes_unsaved or after.metrics().get("isthmus_config_unsaved") == "1"
        )
        if unsaved:
            result.update(changed=True, saved=True)
            if not module.check_mode:
                after.command("save")
    except ApiError as error:
        module.fail_json(msg=str(error), status=error.status, **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
