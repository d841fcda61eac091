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
  url:
    description: Address of the appliance, as C(http://10.0.0.1) or C(https://gateway-1).
    type: str
    required: true
  token:
    description: Token of a user.
    type: str
  ca_path:
    description: File with the certificate that signs the appliance's, or with its own.
    type: path
  client_cert:
    description: File with the certificate of a user, for TLS.
    type: path
  client_key:
    description: File with its key.
    type: path
  timeout:
    description: Seconds in which the appliance has to answer.
    type: int
    default: 20
  command:
    description: The command.
    type: str
    required: true
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
