{{- define "singularity.labels" -}}
app.kubernetes.io/name: singularity
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "singularity.selector" -}}
app.kubernetes.io/name: singularity
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end }}

{{/* The policies of the planner that are on, in words. Values may be missing: `helm upgrade --reuse-values`. */}}
{{- define "singularity.planner.on" -}}
{{- range $name, $policy := .Values.planner | default dict -}}
{{- if and (kindIs "map" $policy) (ne (dig "mode" "none" $policy) "none") }}{{ $name }} {{ end -}}
{{- end -}}
{{- end }}

{{/* JSON list of the values of `key` in the maps of the list `of`. */}}
{{- define "singularity.listed" -}}
{{- $found := list -}}
{{- range .of }}{{ $found = append $found (get . $.key) }}{{ end -}}
{{- toJson $found -}}
{{- end }}

{{/* Values of the guard may be missing: `helm upgrade --reuse-values` brings no defaults of a newer chart. */}}
{{/* JSON list of the users who may write the annotations that are the controller's. */}}
{{- define "singularity.guard.accounts" -}}
{{- $found := list (printf "system:serviceaccount:%s:singularity-controller" .Release.Namespace) -}}
{{- if .Values.multikueue.worker.enabled -}}
{{- $found = append $found (printf "system:serviceaccount:%s:singularity-multikueue" .Release.Namespace) -}}
{{- end -}}
{{- concat $found (dig "accounts" list (.Values.guard | default dict)) | toJson -}}
{{- end }}

{{/* JSON list: as whom Kubernetes makes the pods of Jobs. */}}
{{- define "singularity.guard.jobController" -}}
{{- list "system:serviceaccount:kube-system:job-controller" "system:kube-controller-manager" | toJson -}}
{{- end }}

{{/* Seconds of training before an attempt finds out whether it can be saved, or "off". */}}
{{- define "singularity.saveTrial" -}}
{{- $trial := .Values.saveTrial | default dict -}}
{{- if dig "enabled" true $trial }}{{ dig "afterSeconds" 120 $trial }}{{ else }}off{{ end -}}
{{- end }}

{{/* JSON: the paths of nodes that the platform's own volumes show, those of them of which every mount is read-only, and those
that only the sidecar may show (`store`). */}}
{{- define "singularity.guard.hostPaths" -}}
{{- $paths := list }}{{ $read := list }}{{ $store := list -}}
{{- $stores := list .Values.store }}{{ range $name, $own := (.Values.store.namespaces | default dict) }}{{ $stores = append $stores $own }}{{ end -}}
{{- range $volume := .Values.pods.volumes }}
{{- if $volume.hostPath }}
{{- $paths = append $paths $volume.hostPath.path }}
{{- $mounts := 0 }}{{ $written := 0 }}
{{- range $.Values.pods.volumeMounts }}
{{- if eq .name $volume.name }}{{ $mounts = add1 $mounts }}{{ if not .readOnly }}{{ $written = add1 $written }}{{ end }}{{ end }}
{{- end }}
{{- if and $mounts (not $written) }}{{ $read = append $read $volume.hostPath.path }}{{ end }}
{{- end }}
{{- end }}
{{- range $stores }}{{ range (.volumes | default list) }}{{ if .hostPath }}
{{- if not (has .hostPath.path $paths) }}{{ $store = append $store .hostPath.path }}{{ end }}
{{- end }}{{ end }}{{ end -}}
{{- dict "paths" (concat $paths $store | uniq) "readOnly" $read "store" ($store | uniq) | toJson -}}
{{- end }}

{{/* JSON lists: Secrets whose entries are variables of sidecars, and names of further variables of theirs. */}}
{{- define "singularity.guard.storeSecrets" -}}
{{- $found := list -}}
{{- range prepend (values (.Values.store.namespaces | default dict)) .Values.store }}{{ with .secret }}{{ $found = append $found . }}{{ end }}{{ end -}}
{{- $found | uniq | sortAlpha | toJson -}}
{{- end }}
{{- define "singularity.guard.storeSettings" -}}
{{- $found := list -}}
{{- range prepend (values (.Values.store.namespaces | default dict)) .Values.store }}{{ $found = concat $found (keys (.env | default dict)) }}{{ end -}}
{{- $found | uniq | sortAlpha | toJson -}}
{{- end }}

{{/* A pod of this chart that looks at the cluster with the controller's image. `name`: of the container. */}}
{{- define "singularity.lookPod" -}}
serviceAccountName: {{ .account }}
restartPolicy: Never
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: {{ .name }}
    image: {{ .root.Values.images.controller }}
    imagePullPolicy: {{ .root.Values.imagePullPolicy }}
    command: {{ toJson .command }}
    env:
      - {name: SINGULARITY_NAMESPACE, value: {{ .root.Release.Namespace }}}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    volumeMounts:
      # The Kubernetes client writes the CA's certificate to a file.
      - {name: tmp, mountPath: /tmp}
volumes:
  - name: tmp
    emptyDir: {medium: Memory, sizeLimit: 16Mi}
{{- with .root.Values.controller.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.controller.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The Secret of somebody else that has the certificate, "" where the controller makes its own. */}}
{{- define "singularity.tlsSecret" -}}
{{- $tls := .Values.tls | default dict -}}
{{- if dig "existingSecret" "" $tls }}{{ $tls.existingSecret }}
{{- else if dig "certManager" "issuerRef" dict $tls }}singularity-controller-tls{{ end -}}
{{- end }}

{{/* JSON: what the sidecars alone have for the store. Values may be missing: see the guard's. */}}
{{- define "singularity.storePods" -}}
{{- if and .Values.store.namespaces (or .Values.adoption.enabled .Values.trainjob.enabled) -}}
{{- fail "store.namespaces: adoption.enabled and trainjob.enabled give the jobs of all namespaces the same store: switch them off, and adopt with `singularityctl adopt`" -}}
{{- end -}}
{{- if and (or .Values.adoption.enabled .Values.trainjob.enabled) (or (contains "{namespace}" (.Values.store.volumes | default list | toJson)) (contains "{namespace}" (.Values.store.volumeMounts | default list | toJson))) -}}
{{- fail "store.volumeMounts: has {namespace}, and adoption.enabled and trainjob.enabled give the jobs of all namespaces the same mounts: switch them off, and adopt with `singularityctl adopt`" -}}
{{- end -}}
{{- if and .Values.trainjob.enabled (contains "{namespace}" (.Values.store.url | default "")) -}}
{{- fail "store.url: has {namespace}, and trainjob.enabled gives the jobs of all namespaces the same store" -}}
{{- end -}}
{{- dict
  "volumes" (.Values.store.volumes | default list)
  "volumeMounts" (.Values.store.volumeMounts | default list)
  "env" (.Values.store.env | default dict)
  "secret" (.Values.store.secret | default "") | toJson -}}
{{- end }}

{{/* JSON: the Secret with the keys that checkpoints are encrypted with, and where they are. */}}
{{- define "singularity.storeKeys" -}}
{{- $given := .Values.store.encryption | default dict -}}
{{- if $given.enabled -}}
{{- dict "secret" ($given.secret | default "singularity-store-key") "namespaces" ($given.namespaces | default list) | toJson -}}
{{- else -}}{}{{- end -}}
{{- end }}

{{/* JSON: what the controller publishes for those who submit jobs, but for the authorities, which it alone knows. */}}
{{- define "singularity.platform" -}}
{{- dict
  "agent_image" .Values.images.agent
  "controller_url" (printf "https://singularity-controller.%s.svc:443" .Release.Namespace)
  "controller_ca" ""
  "train_image" (.Values.images.train | default "")
  "store" (.Values.store.url | default "")
  "store_pods" (include "singularity.storePods" . | fromJson)
  "store_keys" (include "singularity.storeKeys" . | fromJson)
  "stores" (.Values.store.namespaces | default dict)
  "outputs" (.Values.outputs.prefixes | default list)
  "volumes" (.Values.pods.volumes | default list)
  "volume_mounts" (.Values.pods.volumeMounts | default list)
  "env" (.Values.pods.env | default dict)
  "checkpoint_memory" (.Values.pods.checkpointMemory | default "")
  "checkpoint_disk" (.Values.pods.checkpointDisk | default "")
  "privileges" (.Values.pods.privileges | default "node")
  "apparmor" (.Values.pods.appArmorProfile | default "")
  "max_budget_s" (int .Values.budget.maxSeconds)
  "tiers" (.Values.planner.slaTiers.tiers | default dict)
  "tiers_window_s" (int .Values.planner.slaTiers.windowSeconds)
  "image_pull_policy" .Values.imagePullPolicy
  "namespaces" (.Values.controller.namespaces | default list)
  "adoption" .Values.adoption.enabled
  "trainjob" .Values.trainjob.enabled | toJson -}}
{{- end }}
