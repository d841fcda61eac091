#!/usr/bin/python
# SPDX-License-Identifier: MIT OR Apache-2.0

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: release
short_description: Upgrades an Isthmus appliance
description:
  - Upgrades to a signed release, and waits until it runs and is confirmed. An appliance that runs it already is not
    changed. If the release is rolled back, the module fails, and the appliance runs the previous one.
options:
  source:
    description: URL or disk of the release, as for the command C(upgrade).
    type: str
    required: true
  version:
    description: Version in the release.
    type: str
    required: true
  wait:
    description: Seconds in which the release has to be written, to start and to be confirmed.
    type: int
    default: 900
extends_documentation_fragment: isthmus.gateway.connection
author: The Isthmus authors
"""

EXAMPLES = r"""
- isthmus.gateway.release:
    url: "http://{{ ansible_host }}"
    token: "{{ isthmus_token }}"
    source: http://10.0.0.9:8000/isthmus.release
    version: 1.2.0
"""

RETURN = r"""
runs:
  description: The slot from which the appliance runs.
  type: str
  returned: success
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.isthmus.gateway.plugins.module_utils.api import ARGUMENTS, Api, ApiError, parsed


def state(api):
    """The slot that runs, its version, whether it is on trial, and the slot that failed."""
    shown = parsed(api.command("show upgrade --json"))
    if "slots" not in shown:
        raise ApiError(0, "the appliance does not boot from a disk with slots for releases")
    running = [slot for slot in shown["slots"] if slot["runs"]]
    version = running[0]["version"] if running else ""
    return shown["runs"], version, shown["trial"], shown["failed"]


def start(api, params):
    """Writes the release. The appliance reboots at the end, so the answer may end early."""
    try:
        Api(dict(params, timeout=params["wait"]), api.url).command("upgrade " + params["source"])
    except ApiError as error:
        if error.status != 0:
            raise


def wait_for(api, params, failed_before):
    """Waits until the release runs and is confirmed; returns its slot."""
    until, why = time.time() + params["wait"], "it did not start"
    while time.time() < until:
        try:
            slot, version, trial, failed = state(api)
            if version == params["version"] and not trial:
                return slot
            if version != params["version"] and failed and failed != failed_before:
                raise ApiError(1, "the trial of slot %s failed; the previous release runs" % failed)
            why = "it is still on trial" if version == params["version"] else "the previous release runs"
        except ApiError as error:
            if error.status not in (0, 503):
                raise
            why = str(error)
        time.sleep(3)
    raise ApiError(1, "no confirmed release %s after %d s: %s" % (params["version"], params["wait"], why))


def main():
    arguments = dict(
        source=dict(type="str", required=True),
        version=dict(type="str", required=True),
        wait=dict(type="int", default=900),
        **ARGUMENTS
    )
    module = AnsibleModule(arguments, supports_check_mode=True)
    params = module.params
    api = Api(params)
    try:
        slot, version, trial, failed = state(api)
        changed = version != params["version"]
        difference = dict(before=version + "\n", after=params["version"] + "\n")
        if not module.check_mode and (changed or trial):
            if changed:
                start(api, params)
            slot = wait_for(Api(dict(params, timeout=5)), params, failed)
    except ApiError as error:
        module.fail_json(msg=str(error), status=error.status)
    module.exit_json(changed=changed, runs=slot, diff=difference)


if __name__ == "__main__":
    main()
