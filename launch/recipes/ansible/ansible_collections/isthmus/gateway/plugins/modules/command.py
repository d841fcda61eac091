#!/usr/bin/python
# SPDX-License-Identifier: MIT OR Apache-2.0

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: command
short_description: Executes a command of the console of an Isthmus appliance
description:
  - Executes any command of the console, with the role that it needs. The task is C(changed) unless the command begins
    with C(show), C(check), C(compare), C(ping) or C(doctor). It is skipped in check mode unless it is one of these.
options:
  command:
    description: The command.
    type: str
    required: true
extends_documentation_fragment: isthmus.gateway.connection
author: The Isthmus authors
"""

EXAMPLES = r"""
- isthmus.gateway.command:
    url: "http://{{ ansible_host }}"
    token: "{{ isthmus_token }}"
    command: show exports
"""

RETURN = r"""
output:
  description: What the command printed.
  type: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.isthmus.gateway.plugins.module_utils.api import ARGUMENTS, Api, ApiError

READS = ("show", "check", "compare", "ping", "doctor")


def main():
    arguments = dict(command=dict(type="str", required=True), **ARGUMENTS)
    module = AnsibleModule(arguments, supports_check_mode=True)
    line = module.params["command"]
    changes = line.split(" ")[0] not in READS
    if changes and module.check_mode:
        module.exit_json(changed=True, skipped=True, output="")
    try:
        output = Api(module.params).command(line)
    except ApiError as error:
        module.fail_json(msg=str(error), status=error.status)
    module.exit_json(changed=changes, output=output)


if __name__ == "__main__":
    main()
