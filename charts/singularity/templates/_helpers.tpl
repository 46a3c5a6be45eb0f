{{- define "singularity.labels" -}}
app.kubernetes.io/name: singularity
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "singularity.selector" -}}
app.kubernetes.io/name: singularity
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end }}

{{/* The version in which this cluster serves MutatingAdmissionPolicy. */}}
{{- define "singularity.adoption.api" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
admissionregistration.k8s.io/v1
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" -}}
admissionregistration.k8s.io/v1beta1
{{- else -}}
{{- fail "adoption.enabled: this cluster serves no MutatingAdmissionPolicy (Kubernetes 1.36, or 1.34 with its beta API switched on). Set adoption.enabled=false; `singularityctl adopt` patches manifests without it" -}}
{{- end -}}
{{- end }}

{{/* JSON list of the values of `key` in the maps of the list `of`. */}}
{{- define "singularity.listed" -}}
{{- $found := list -}}
{{- range .of }}{{ $found = append $found (get . $.key) }}{{ end -}}
{{- toJson $found -}}
{{- end }}
