{{/* Generated: python -m kueue_integration.adoption.admission_policy (a test compares). Do not edit. */}}
{{- define "singularity.adoption.parts" }}
{
 "apiVersion": "v1",
 "kind": "PodTemplate",
 "metadata": {
  "name": "singularity-adoption",
  "namespace": {{ .root.Release.Namespace | toJson }},
  "labels": {{ include "singularity.labels" .root | fromYaml | toJson }},
  "annotations": {
   "singularity.dev/store": {{ .root.Values.store.url | default "" | toJson }}
  }
 },
 "template": {
  "spec": {
   "restartPolicy": "Never",
   "initContainers": [
    {
     "name": "install-agent",
     "image": {{ .root.Values.images.agent | toJson }},
     "imagePullPolicy": {{ .root.Values.imagePullPolicy | toJson }},
     "command": [
      "/opt/singularity/bin/install-agent",
      "/singularity/agent"
     ],
     "securityContext": {
      "runAsUser": 0,
      "runAsGroup": 0,
      "runAsNonRoot": false,
      "allowPrivilegeEscalation": false,
      "capabilities": {
       "drop": [
        "ALL"
       ]
      },
      "seccompProfile": {
       "type": "RuntimeDefault"
      }
     },
     "volumeMounts": [
      {
       "name": "singularity-agent",
       "mountPath": "/singularity/agent"
      }
     ]
    },
    {
     "name": "device-proxy",
     "image": {{ .root.Values.images.agent | toJson }},
     "imagePullPolicy": {{ .root.Values.imagePullPolicy | toJson }},
     "restartPolicy": "Always",
     "command": [
      "/opt/singularity/venv/bin/python",
      "-m",
      "proxy.sidecar"
     ],
     "env": [
      {{ range $name, $value := .root.Values.pods.env }}{{ if not (or (hasPrefix "PYTHON" $name) (hasPrefix "LD_" $name)) }}{{ dict "name" $name "value" ($value | replace "$" "$$") | toJson }}, {{ end }}{{ end }}{
       "name": "PYTHONPATH",
       "value": "/opt/singularity/app"
      },
      {
       "name": "PYTHONUNBUFFERED",
       "value": "1"
      },
      {
       "name": "SINGULARITY_NAMESPACE",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "metadata.namespace"
        }
       }
      },
      {
       "name": "SINGULARITY_POD",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "metadata.name"
        }
       }
      },
      {
       "name": "SINGULARITY_POD_IP",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "status.podIP"
        }
       }
      },
      {
       "name": "SINGULARITY_INDEX",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        }
       }
      },
      {
       "name": "SINGULARITY_ATTEMPT",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "metadata.annotations['singularity.dev/attempt']"
        }
       }
      },
      {
       "name": "SINGULARITY_CHECKPOINT",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "metadata.annotations['singularity.dev/checkpoint']"
        }
       }
      },
      {
       "name": "SINGULARITY_WORKERS",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "metadata.annotations['singularity.dev/workers']"
        }
       }
      },
      {
       "name": "SINGULARITY_FLAVOR",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "metadata.annotations['singularity.dev/flavor']"
        }
       }
      },
      {
       "name": "SINGULARITY_CONTROLLER_URL",
       "value": {{ .url | toJson }}
      },
      {
       "name": "SINGULARITY_CONTROLLER_CA",
       "value": {{ .ca | toJson }}
      },
      {
       "name": "SINGULARITY_TOKEN_FILE",
       "value": "/singularity/token/token"
      }
     ],
     "securityContext": {
      "runAsUser": 0,
      "runAsGroup": 0,
      "runAsNonRoot": false,
      "allowPrivilegeEscalation": false,
      "capabilities": {
       "drop": [
        "ALL"
       ]
      },
      "seccompProfile": {
       "type": "RuntimeDefault"
      }
     },
     "volumeMounts": [
      {
       "name": "singularity-run",
       "mountPath": "/singularity/run"
      },
      {
       "name": "singularity-images",
       "mountPath": "/singularity/images"
      },
      {
       "name": "singularity-token",
       "mountPath": "/singularity/token",
       "readOnly": true
      }{{ range .root.Values.pods.volumeMounts }}, {{ toJson . }}{{ end }}
     ]
    }
   ],
   "containers": [
    {
     "name": "train",
     "image": "any",
     "env": [
      {{ range $name, $value := .root.Values.pods.env }}{{ if ne $name "PYTHONPATH" }}{{ dict "name" $name "value" ($value | replace "$" "$$") | toJson }}, {{ end }}{{ end }}{
       "name": "PYTHONPATH",
       "value": "/singularity/agent/lib{{ with .root.Values.pods.env.PYTHONPATH }}:{{ . }}{{ end }}"
      },
      {
       "name": "SINGULARITY_NAMESPACE",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "metadata.namespace"
        }
       }
      },
      {
       "name": "SINGULARITY_POD",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "metadata.name"
        }
       }
      },
      {
       "name": "SINGULARITY_POD_IP",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "status.podIP"
        }
       }
      },
      {
       "name": "SINGULARITY_INDEX",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        }
       }
      },
      {
       "name": "SINGULARITY_ATTEMPT",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "metadata.annotations['singularity.dev/attempt']"
        }
       }
      },
      {
       "name": "SINGULARITY_CHECKPOINT",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "metadata.annotations['singularity.dev/checkpoint']"
        }
       }
      },
      {
       "name": "SINGULARITY_WORKERS",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "metadata.annotations['singularity.dev/workers']"
        }
       }
      },
      {
       "name": "SINGULARITY_FLAVOR",
       "valueFrom": {
        "fieldRef": {
         "fieldPath": "metadata.annotations['singularity.dev/flavor']"
        }
       }
      },
      {
       "name": "SINGULARITY_WORKDIR",
       "value": "."
      }
     ],
     "volumeMounts": [
      {
       "name": "singularity-run",
       "mountPath": "/singularity/run"
      },
      {
       "name": "singularity-agent",
       "mountPath": "/singularity/agent",
       "readOnly": true
      },
      {
       "name": "singularity-work",
       "mountPath": "/singularity/work"
      },
      {
       "name": "singularity-images",
       "mountPath": "/singularity/images"
      },
      {
       "name": "singularity-shm",
       "mountPath": "/dev/shm"
      }{{ range .root.Values.pods.volumeMounts }}, {{ toJson . }}{{ end }}
     ],
     "securityContext": {
      "runAsUser": 0,
      "runAsGroup": 0,
      "runAsNonRoot": false,
      "privileged": false,
      "capabilities": {
       "add": [
        "SYS_ADMIN",
        "NET_ADMIN",
        "SYS_TIME",
        "SYS_PTRACE"
       ]
      },
      "seccompProfile": {
       "type": "Unconfined"
      },
      "appArmorProfile": {
       "type": "Unconfined"
      }
     }
    }
   ],
   "volumes": [
    {
     "name": "singularity-run",
     "emptyDir": {
      "medium": "Memory",
      "sizeLimit": "16Mi"
     }
    },
    {
     "name": "singularity-agent",
     "emptyDir": {}
    },
    {
     "name": "singularity-work",
     "emptyDir": {}
    },
    {
     "name": "singularity-images",
     "emptyDir": {}
    },
    {
     "name": "singularity-shm",
     "emptyDir": {
      "medium": "Memory"
     }
    },
    {
     "name": "singularity-token",
     "projected": {
      "sources": [
       {
        "serviceAccountToken": {
         "audience": "singularity.dev",
         "expirationSeconds": 3600,
         "path": "token"
        }
       }
      ]
     }
    }{{ range .root.Values.pods.volumes }}, {{ toJson . }}{{ end }}
   ]
  }
 }
}
{{- end }}
{{- define "singularity.trainjob.runtime" }}
{
 "apiVersion": "trainer.kubeflow.org/v1alpha1",
 "kind": "ClusterTrainingRuntime",
 "metadata": {
  "name": "singularity",
  "labels": {{ include "singularity.labels" .root | fromYaml | merge (dict "trainer.kubeflow.org/framework" "torch") | toJson }}
 },
 "spec": {
  "mlPolicy": {
   "numNodes": 1
  },
  "template": {
   "spec": {
    "replicatedJobs": [
     {
      "name": "node",
      "replicas": 1,
      "template": {
       "metadata": {
        "labels": {
         "trainer.kubeflow.org/trainjob-ancestor-step": "trainer"
        }
       },
       "spec": {
        "completionMode": "Indexed",
        "podReplacementPolicy": "Failed",
        "backoffLimit": 6,
        "podFailurePolicy": {
         "rules": [
          {
           "action": "Ignore",
           "onPodConditions": [
            {
             "type": "DisruptionTarget",
             "status": "True"
            }
           ]
          },
          {
           "action": "Ignore",
           "onExitCodes": {
            "containerName": "node",
            "operator": "In",
            "values": [
             81,
             82,
             143
            ]
           }
          },
          {
           "action": "FailJob",
           "onExitCodes": {
            "containerName": "node",
            "operator": "NotIn",
            "values": [
             137
            ]
           }
          }
         ]
        },
        "template": {
         "spec": {
          "restartPolicy": "Never",
          "initContainers": [
           {
            "name": "install-agent",
            "image": {{ .root.Values.images.agent | toJson }},
            "imagePullPolicy": {{ .root.Values.imagePullPolicy | toJson }},
            "command": [
             "/opt/singularity/bin/install-agent",
             "/singularity/agent"
            ],
            "securityContext": {
             "runAsUser": 0,
             "runAsGroup": 0,
             "runAsNonRoot": false,
             "allowPrivilegeEscalation": false,
             "capabilities": {
              "drop": [
               "ALL"
              ]
             },
             "seccompProfile": {
              "type": "RuntimeDefault"
             }
            },
            "volumeMounts": [
             {
              "name": "singularity-agent",
              "mountPath": "/singularity/agent"
             }
            ]
           },
           {
            "name": "device-proxy",
            "image": {{ .root.Values.images.agent | toJson }},
            "imagePullPolicy": {{ .root.Values.imagePullPolicy | toJson }},
            "restartPolicy": "Always",
            "command": [
             "/opt/singularity/venv/bin/python",
             "-m",
             "proxy.sidecar"
            ],
            "env": [
             {{ range $name, $value := .root.Values.pods.env }}{{ if not (or (hasPrefix "PYTHON" $name) (hasPrefix "LD_" $name)) }}{{ dict "name" $name "value" ($value | replace "$" "$$") | toJson }}, {{ end }}{{ end }}{
              "name": "PYTHONPATH",
              "value": "/opt/singularity/app"
             },
             {
              "name": "PYTHONUNBUFFERED",
              "value": "1"
             },
             {
              "name": "SINGULARITY_NAMESPACE",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "metadata.namespace"
               }
              }
             },
             {
              "name": "SINGULARITY_POD",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "metadata.name"
               }
              }
             },
             {
              "name": "SINGULARITY_POD_IP",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "status.podIP"
               }
              }
             },
             {
              "name": "SINGULARITY_INDEX",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"
               }
              }
             },
             {
              "name": "SINGULARITY_ATTEMPT",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "metadata.annotations['singularity.dev/attempt']"
               }
              }
             },
             {
              "name": "SINGULARITY_CHECKPOINT",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "metadata.annotations['singularity.dev/checkpoint']"
               }
              }
             },
             {
              "name": "SINGULARITY_WORKERS",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "metadata.annotations['singularity.dev/workers']"
               }
              }
             },
             {
              "name": "SINGULARITY_FLAVOR",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "metadata.annotations['singularity.dev/flavor']"
               }
              }
             },
             {
              "name": "SINGULARITY_CONTROLLER_URL",
              "value": {{ .url | toJson }}
             },
             {
              "name": "SINGULARITY_CONTROLLER_CA",
              "value": {{ .ca | toJson }}
             },
             {
              "name": "SINGULARITY_TOKEN_FILE",
              "value": "/singularity/token/token"
             }
            ],
            "securityContext": {
             "runAsUser": 0,
             "runAsGroup": 0,
             "runAsNonRoot": false,
             "allowPrivilegeEscalation": false,
             "capabilities": {
              "drop": [
               "ALL"
              ]
             },
             "seccompProfile": {
              "type": "RuntimeDefault"
             }
            },
            "volumeMounts": [
             {
              "name": "singularity-run",
              "mountPath": "/singularity/run"
             },
             {
              "name": "singularity-images",
              "mountPath": "/singularity/images"
             },
             {
              "name": "singularity-token",
              "mountPath": "/singularity/token",
              "readOnly": true
             }{{ range .root.Values.pods.volumeMounts }}, {{ toJson . }}{{ end }}
            ]
           }
          ],
          "containers": [
           {
            "name": "node",
            "image": {{ .root.Values.images.train | default "none" | toJson }},
            "env": [
             {{ range $name, $value := .root.Values.pods.env }}{{ if ne $name "PYTHONPATH" }}{{ dict "name" $name "value" ($value | replace "$" "$$") | toJson }}, {{ end }}{{ end }}{
              "name": "PYTHONPATH",
              "value": "/singularity/agent/lib{{ with .root.Values.pods.env.PYTHONPATH }}:{{ . }}{{ end }}"
             },
             {
              "name": "SINGULARITY_NAMESPACE",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "metadata.namespace"
               }
              }
             },
             {
              "name": "SINGULARITY_POD",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "metadata.name"
               }
              }
             },
             {
              "name": "SINGULARITY_POD_IP",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "status.podIP"
               }
              }
             },
             {
              "name": "SINGULARITY_INDEX",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"
               }
              }
             },
             {
              "name": "SINGULARITY_ATTEMPT",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "metadata.annotations['singularity.dev/attempt']"
               }
              }
             },
             {
              "name": "SINGULARITY_CHECKPOINT",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "metadata.annotations['singularity.dev/checkpoint']"
               }
              }
             },
             {
              "name": "SINGULARITY_WORKERS",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "metadata.annotations['singularity.dev/workers']"
               }
              }
             },
             {
              "name": "SINGULARITY_FLAVOR",
              "valueFrom": {
               "fieldRef": {
                "fieldPath": "metadata.annotations['singularity.dev/flavor']"
               }
              }
             },
             {
              "name": "SINGULARITY_WORKDIR",
              "value": "."
             }
            ],
            "volumeMounts": [
             {
              "name": "singularity-run",
              "mountPath": "/singularity/run"
             },
             {
              "name": "singularity-agent",
              "mountPath": "/singularity/agent",
              "readOnly": true
             },
             {
              "name": "singularity-work",
              "mountPath": "/singularity/work"
             },
             {
              "name": "singularity-images",
              "mountPath": "/singularity/images"
             },
             {
              "name": "singularity-shm",
              "mountPath": "/dev/shm"
             }{{ range .root.Values.pods.volumeMounts }}, {{ toJson . }}{{ end }}
            ],
            "securityContext": {
             "runAsUser": 0,
             "runAsGroup": 0,
             "runAsNonRoot": false,
             "privileged": false,
             "capabilities": {
              "add": [
               "SYS_ADMIN",
               "NET_ADMIN",
               "SYS_TIME",
               "SYS_PTRACE"
              ]
             },
             "seccompProfile": {
              "type": "Unconfined"
             },
             "appArmorProfile": {
              "type": "Unconfined"
             }
            },
            "imagePullPolicy": {{ .root.Values.imagePullPolicy | toJson }},
            "command": [
             "/singularity/agent/launcher/start"
            ]
           }
          ],
          "volumes": [
           {
            "name": "singularity-run",
            "emptyDir": {
             "medium": "Memory",
             "sizeLimit": "16Mi"
            }
           },
           {
            "name": "singularity-agent",
            "emptyDir": {}
           },
           {
            "name": "singularity-work",
            "emptyDir": {}
           },
           {
            "name": "singularity-images",
            "emptyDir": {}
           },
           {
            "name": "singularity-shm",
            "emptyDir": {
             "medium": "Memory"
            }
           },
           {
            "name": "singularity-token",
            "projected": {
             "sources": [
              {
               "serviceAccountToken": {
                "audience": "singularity.dev",
                "expirationSeconds": 3600,
                "path": "token"
               }
              }
             ]
            }
           }{{ range .root.Values.pods.volumes }}, {{ toJson . }}{{ end }}
          ],
          "terminationGracePeriodSeconds": 90,
          "automountServiceAccountToken": false,
          "enableServiceLinks": false
         }
        }
       }
      }
     }
    ]
   }
  }
 }
}
{{- end }}
