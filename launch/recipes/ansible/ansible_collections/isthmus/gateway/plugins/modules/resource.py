#!/usr/bin/python
# SPDX-License-Identifier: MIT OR Apache-2.0

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: resource
short_description: An entry of a list of an Isthmus appliance
description:
  - Adds, replaces or removes an export, a volume, a rule, a mirror, a remote, a user, a usNIC interface or a LINX link.
    It is in force at once.
options:
  list:
    description: Name of the list.
    type: str
    required: true
    choices: [exports, volumes, rules, mirrors, remotes, users, usnic, linx]
  name:
    description: Name of the entry.
    type: str
    required: true
  entry:
    description: Its keys but for C(name). Keys that are not given have their defaults.
    type: dict
    default: {}
  state:
    description: Whether the entry exists.
    type: str
    choices: [present, absent]
    default: present
  accept_cuts:
    description: Changes also if that cuts somebody off. Without it the module fails with the list.
    type: bool
    default: false
  save:
    description: Saves the running configuration after a change.
    type: bool
    default: true
extends_documentation_fragment: isthmus.gateway.connection
author: The Isthmus authors
"""

EXAMPLES = r"""
- isthmus.gateway.resource:
    url: "http://{{ ansible_host }}"
    token: "{{ isthmus_token }}"
    list: exports
    name: data
    entry: {volume: data, hosts: [10.0.0.0/24]}
"""

RETURN = r"""
changes:
  description: Keys with their values before and after. Secrets are not shown.
  type: list
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.isthmus.gateway.plugins.module_utils.api import (
    ARGUMENTS, Api, ApiError, Candidate, diff, part, section,
)


def planned(api, params):
    """What the change would do: a candidate with it is compared, and dropped."""
    listed, name = api.json("GET", params["list"]), params["name"]
    entries = [entry for entry in listed if entry.get("name") != name]
    if params["state"] == "present":
        entries.append(dict(params["entry"], name=name))
    if len(entries) == len(listed) and params["state"] == "present":
        # In its place, so that the order of the others is no change.
        at = [entry.get("name") for entry in listed].index(name)
        entries.insert(at, entries.pop())
    candidate = Candidate(api)
    changes = candidate.edit("PATCH", {section(params["list"]): entries}, "application/json")
    candidate.drop()
    return changes


def main():
    choices = ["exports", "volumes", "rules", "mirrors", "remotes", "users", "usnic", "linx"]
    arguments = dict(
        list=dict(type="str", required=True, choices=choices),
        name=dict(type="str", required=True),
        entry=dict(type="dict", default={}),
        state=dict(type="str", choices=["present", "absent"], default="present"),
        accept_cuts=dict(type="bool", default=False),
        save=dict(type="bool", default=True),
        **ARGUMENTS
    )
    module = AnsibleModule(arguments, supports_check_mode=True)
    params = module.params
    api = Api(params)
    path = "%s/%s%s" % (
        params["list"], part(params["name"]), "?yes=true" if params["accept_cuts"] else "",
    )
    changes = []
    try:
        if module.check_mode:
            changes = planned(api, params)
        elif params["state"] == "present":
            changes = api.json("PUT", path, params["entry"]).get("changes", [])
        else:
            try:
                changes = api.json("DELETE", path).get("changes", [])
            except ApiError as error:
                if error.status != 404:
                    raise
        if changes and params["save"] and not module.check_mode:
            api.command("save")
    except ApiError as error:
        cuts = error.body.get("cuts")
        module.fail_json(
            msg="%s%s" % (error, ": " + "; ".join(cuts) if cuts else ""), status=error.status,
        )
    module.exit_json(changed=bool(changes), changes=changes, diff=diff(changes))


if __name__ == "__main__":
    main()
